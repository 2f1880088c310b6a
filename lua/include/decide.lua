-- What acquire.lua does if it is not alone: with a holder, waiters, or what either has left behind. Most often it is, so
-- each of its branches includes what it needs of this.
--
-- It knows what acquire.lua defines: QUEUES, IS_GATE, ANCESTORS, FIRST_FIELD, is_superseding, quarantine and
-- longest_quarantine.
-- @include queue
-- @include grant
-- @include turn
-- @include blocked
-- @include supersede
-- @include expired

-- Even if the server has our claim, and even if the lock is taken: it may have an old copy of its data. One of several
-- queues no client either, so that all clients turn to the same next gate. The only server: when its quarantine is over,
-- the waiters are served in the order in which they came.
local function wait_for_quarantine()
  for _, k in ipairs(QUEUES and SERVERS == '1' and LOCKS or {}) do
    enqueue(k, FIRST_FIELD)
  end
  return { 'quarantined', int_string(quarantine), int_string(longest_quarantine) }
end

-- Finds out whether we hold any of the locks already, and what capacity they have for our mode. Returns a reply if that is
-- no matter of waiting.
local function look_at_holders()
  for i, k in ipairs(LOCKS) do
    k.is_ours, k.entry = claim_of(k, ME)
    if k.is_ours == ATTEMPT and SERVERS ~= '1' then
      return { 'duplicate_server' }
    end
    if k.is_ours and k.is_ours > ATTEMPT then
      return { 'stale' }
    end
    local refusal = not k.is_ours and (current(k) and mismatch(k) or is_superseding and superseded(k, i))
    if refusal then
      return refusal
    end
    k.capacity = free_capacity(k, MODE)
  end
end

-- Whether it is our turn, where K has capacity for our mode. A request that joins is not asked to wait for its turn while
-- its mode holds the lock.
local function is_our_turn(k)
  if has(FLAGS, JOINS) and current(k) == MODE then
    return true
  end
  remove_dead_waiters(k)
  local ahead = count_ahead(k)
  return ahead == 0 or ahead < k.capacity and are_of_our_mode(k, ahead)
end

-- Our request queues, or is granted. Not without a stamp at a server other than the gate: what it would get there is not
-- what other servers know.
local function supersede_all()
  for _, k in ipairs((IS_GATE or STAMP) and LOCKS or {}) do
    supersede(k, FIRST_FIELD)
  end
end

-- `held`: the first key that is held; `not_our_turn`: the first one where it is not our turn. Returns the reply.
local function wait_for_turn(held, not_our_turn)
  for _, k in ipairs(IS_GATE and LOCKS or {}) do
    if k.must_wait and is_below_ancestor(k, ANCESTORS) then
      return { 'nested' }
    end
  end
  if QUEUES and is_superseding then
    supersede_all()
  end
  -- Before we queue anywhere: a place of ours from long ago may be gone in one queue and not in another, and two waiters for
  -- the same keys that are not in the same order everywhere would wait for each other.
  for _, k in ipairs(LOCKS) do
    remove_dead_waiters(k)
  end
  for _, k in ipairs(LOCKS) do
    if QUEUES then
      enqueue(k, FIRST_FIELD)
    end
    wake_next(k, true) -- the holder expired or the first waiter died: no release wakes the next one
  end
  local shown = held or not_our_turn
  return blocked_by(shown, call('ZRANK', LOCKS[shown].queue, QUEUED))
end

-- Before K is ours: we leave its queue, and what the last holder has left behind without a word is written down.
local function take_over(k)
  k.was_queued = k.has_queue and leave_queue(k)
  k.was_free = not current(k)
  if k.was_free and not k.is_clean then
    k.is_clean = call('EXISTS', k.info, k.shared) == 0
    if not k.is_clean then
      -- @include expired
      pcall(log_expired, k)
    end
  end
end

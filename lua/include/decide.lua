-- Whether a request is granted that is not plain: something of the lock is there, it may be shared, or others are affected.
-- Apart from acquire.lua, since Redis creates every function anew in each call, and most requests are plain. What is needed
-- only if a lock is held, or only to wait, is created only then.
--
-- It knows what acquire.lua defines: QUEUES, ROLE, IS_GATE, ANCESTORS, FIRST_FIELD, is_untouched, quarantine and
-- longest_quarantine.
-- @include queue
-- @include grant

local IS_SUPERSEDING = has(FLAGS, SUPERSEDES)

-- Not without a stamp at a server other than the gate: what it would get there is not what other servers know.
local function supersede_all()
  -- @include supersede
  for _, k in ipairs((IS_GATE or STAMP) and LOCKS or {}) do
    supersede(k, FIRST_FIELD)
  end
end

-- The BLPOP behind a vote is to wait for a release, and for nothing else.
local function end_blpop()
  -- @include wakeup
  push_wakeup(ME)
end

local function log_expired_holders(k)
  -- @include expired
  pcall(log_expired, k)
end

local function leave_if_queued(k)
  k.was_queued = k.has_queue and leave_queue(k)
  k.was_free = not current(k)
  if k.was_free and not k.is_clean then
    k.is_clean = call('EXISTS', k.info, k.shared) == 0
    if not k.is_clean then
      log_expired_holders(k)
    end
  end
end

local function write_shared(...)
  -- @include share
  write_share(...)
end

local function undo_shared(...)
  -- @include share
  undo_share(...)
end

local function wake_beside()
  -- @include turn
  wake_beside_us()
end

local function finish_grant()
  if MODE ~= '' and not is_untouched then
    wake_beside()
  end
  if ROLE == 'ahead' then
    end_blpop()
  end
end

-- What acquire.lua needs to write the grant down.
local function take_turn()
  if IS_SUPERSEDING then
    supersede_all()
  end
  if MODE == '' then
    return nil, our_stamp(), write_exclusive, nil, leave_if_queued, finish_grant
  end
  return nil, our_stamp(), write_shared, undo_shared, leave_if_queued, finish_grant
end

-- Finds out whether we hold any of the locks already, and what capacity the held ones have. Returns a reply if that is no
-- matter of waiting.
local function look_at_holders()
  -- @include blocked
  for _, k in ipairs(LOCKS) do
    local attempt
    attempt, k.entry = claim_of(k, ME)
    if attempt == ATTEMPT and SERVERS ~= '1' then
      return { ROLE == 'again' and 'kept' or 'duplicate_server' }
    end
    if attempt and attempt > ATTEMPT then
      return { 'stale' }
    end
    local refusal = not attempt and current(k) and mismatch(k)
    if refusal then
      return refusal
    end
    k.is_ours, k.capacity = attempt, free_capacity(k, MODE)
  end
end

local function find_superseded()
  -- @include supersede
  for i, k in ipairs(LOCKS) do
    local reply = not k.is_ours and superseded(k, i)
    if reply then
      return reply
    end
  end
end

-- Whether it is our turn, where K has this capacity for our mode. A request that joins is not asked to wait for its
-- turn while its mode holds the lock.
local function is_our_turn(k, capacity)
  if not k.has_queue or has(FLAGS, JOINS) and current(k) == MODE then
    return true
  end
  -- The first one need not know who of the others is dead, if it wants the lock for itself alone.
  k.is_first = MODE == '' and call('ZRANK', k.queue, QUEUED) == 0
  if not k.is_first then
    -- @include queue
    remove_dead_waiters(k)
    local ahead = count_ahead(k)
    return ahead == 0 or ahead < capacity and are_of_our_mode(k, ahead)
  end
  return true
end

local function is_below_any_ancestor()
  -- @include blocked
  for _, k in ipairs(LOCKS) do
    if k.must_wait and is_below_ancestor(k, ANCESTORS) then
      return true
    end
  end
end

-- Even if the server has our claim, and even if the lock is taken: it may have an old copy of its data. One of several
-- queues no client either, so that all clients turn to the same next gate. The only server: when its quarantine is over,
-- the waiters are served in the order in which they came.
local function wait_for_quarantine()
  -- @include queue
  for _, k in ipairs(QUEUES and SERVERS == '1' and LOCKS or {}) do
    enqueue(k, FIRST_FIELD)
  end
  return { 'quarantined', int_string(quarantine), int_string(longest_quarantine) }
end

-- `held`: the first key that is held; `not_our_turn`: the first one where it is not our turn. Returns the reply, and whether it
-- will be our turn after a release, not only when a lease has ended.
local function wait_for_turn(held, not_our_turn)
  -- @include turn
  -- @include blocked
  for _, k in ipairs(LOCKS) do
    if QUEUES then
      enqueue(k, FIRST_FIELD)
    end
    remove_dead_waiters(k)
    wake_next(k, true) -- the holder expired or the first waiter died: no release wakes the next one
  end
  local k = LOCKS[held or not_our_turn]
  local waits_for_release = not held
  if ROLE == 'ahead' and held then
    -- Not of a program other than redlock, which wakes no client, nor of a claim that expires soon.
    local _, info = holder_of(k)
    local expires = expires_in(k, MODE)
    waits_for_release = info and (expires < 0 or expires > WAITER_RENEWAL_MS)
  end
  return blocked_by(held or not_our_turn, call('ZRANK', k.queue, QUEUED)), waits_for_release
end

local function refuse(reply, waits_for_release)
  if ROLE == 'ahead' and not waits_for_release then
    end_blpop()
  end
  return reply
end

-- The reply if the request is not granted; else nil, and what take_turn() returns.
local function decide()
  if quarantine > 0 then
    return refuse(wait_for_quarantine())
  end
  if is_untouched and not IS_SUPERSEDING then
    return take_turn()
  end
  local is_any_held
  for _, k in ipairs(LOCKS) do
    k.capacity = 1
    is_any_held = is_any_held or MODE ~= '' or current(k)
  end
  local refusal = is_any_held and look_at_holders() or IS_SUPERSEDING and find_superseded()
  if refusal then
    return refuse(refusal)
  end
  local held, not_our_turn
  for i, k in ipairs(LOCKS) do
    if not k.is_ours then
      held = held or k.capacity <= 0 and i
      k.must_wait = k.capacity <= 0 or not is_our_turn(k, k.capacity)
      not_our_turn = not_our_turn or k.must_wait and i
    end
  end
  if not not_our_turn then
    return take_turn()
  end
  if IS_GATE and ANCESTORS ~= '' and is_below_any_ancestor() then
    return refuse({ 'nested' })
  end
  if QUEUES and IS_SUPERSEDING then
    supersede_all()
  end
  return refuse(wait_for_turn(held, not_our_turn))
end

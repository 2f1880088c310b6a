-- Take all locks if each is free for us and it is our turn; otherwise take none, but join each queue.
--
-- KEYS, ARGV[1] to ARGV[5]: see include/request.lua
-- ARGV[6]  ttl         of the locks, ms; 0 = they never expire
-- ARGV[7]  queues      '1' = join the queues if blocked; '0' = do not
-- ARGV[8]  proposed    the gate's tokens, for a vote; '' = this is the gate
-- ARGV[9]  quarantine  how long a server that lost its data does not vote, ms; 0 = off
-- ARGV[10] ancestors   waiters that the client runs under
-- ARGV[11...]          field, value, ... for info:K
--
-- Returns {'granted', run_id, tokens, slots}
--      or {'blocked', key, position, holder...}: see include/blocked.lua
--      or {'quarantined', ms}: this server may have forgotten what it granted, and does not vote yet
--      or {'nested'}: an ancestor is in the way
--      or {'stale'}: a newer request of this waiter was here first, or the waiter has given up
--      or {'duplicate_server'}: this very request was granted here already, so the server is listed twice
--      or {'replica'}
--      or {'different_server_count', n}: held as a lock over n servers
--      or {'slots_mismatch', n}: held with n slots (0 = without slots).
--
-- Atomic, so that "free", "our turn" and "taken" are one moment for all keys, and so that waiters for several keys join
-- all their queues in the same order and cannot wait for each other.
--
-- @include grant
-- @include fence
-- @include queue
-- @include untouched

local TTL, QUEUES, PROPOSED, QUARANTINE, ANCESTORS = ARGV[6], ARGV[7] == '1', ARGV[8], tonumber(ARGV[9]), ARGV[10]
local FIRST_FIELD = 11
local IS_GATE = PROPOSED == ''
-- No token is below these. At the gate none is below the server's clock, so that tokens keep growing after the counter
-- was lost.
local PROPOSED_FENCES = IS_GATE and {} or numbers(PROPOSED)

-- SET comes first: a server that is out of memory refuses a script only if its first write takes memory.
-- If an earlier request of ours was granted and its reply was lost, this one replaces it. With a new token: the old one
-- was never used, and other clients may have had larger ones meanwhile.
local function grant(k, i)
  local info = { fence = int_string(next_fence(k, PROPOSED_FENCES[i] or now_ms())), since = int_string(now_ms()) }
  set_fence(k, info.fence)
  leave_queue(k, QUEUED)
  if k.entry and MODE ~= '' then
    call('ZREM', k.shared, k.entry)
  end
  if slots_of(MODE) then
    info.slot = free_slot(k)
  end
  k.was_free = not current(k)
  store_grant(k, info, TTL, FIRST_FIELD)
  return info.fence, info.slot
end

local function grant_all()
  local fences, slots = {}, {}
  for i, k in ipairs(LOCKS) do
    fences[i], slots[i] = grant(k, i)
  end
  return { 'granted', run_id(), table.concat(fences, ' '), table.concat(slots, ' ') }
end

-- Decides about locks of which at least one may be held or waited for.
local function decide(quarantined)
  -- @include turn
  -- @include blocked
  local held, not_our_turn -- the first such key
  for i, k in ipairs(LOCKS) do
    local attempt
    attempt, k.entry = claim_of(k, ME)
    if attempt == ATTEMPT and SERVERS ~= '1' then
      return { 'duplicate_server' }
    end
    if attempt and attempt > ATTEMPT then
      return { 'stale' }
    end
    if not attempt then
      local refusal = current(k) and mismatch(k)
      if refusal then
        return refusal
      end
      local capacity = free_capacity(k, MODE)
      if capacity <= 0 then
        held = held or i
      end
      -- A vote does not depend on the queue: the gate has decided whose turn it is.
      if IS_GATE and (capacity <= 0 or not is_our_turn(k, capacity)) then
        not_our_turn = not_our_turn or i
        if is_below_ancestor(k, ANCESTORS) then
          return { 'nested' }
        end
      end
    end
  end
  if quarantined and not held then
    return quarantined -- even if the server has our claim: it may be an old copy
  end
  if not held and not not_our_turn then
    local reply = grant_all()
    if IS_GATE and MODE ~= '' then
      wake_beside_us()
    end
    return reply
  end
  if QUEUES and #LOCKS > 1 then
    rejoin_all()
  end
  for _, k in ipairs(LOCKS) do
    if QUEUES then
      enqueue(k)
    end
    if IS_GATE then
      wake_next(k, true) -- the holder expired or the first waiter died: no release wakes the next one
    end
  end
  local i = held or not_our_turn
  return blocked_by(i, call('ZRANK', LOCKS[i].queue, QUEUED))
end

if is_replica() then
  return { 'replica' }
end
local is_untouched = nothing_exists()
if not is_untouched and call('EXISTS', TOMBSTONE) == 1 then
  return { 'stale' }
end
local quarantine = quarantine_left(QUARANTINE)
local quarantined = quarantine > 0 and { 'quarantined', int_string(quarantine) }
if is_untouched then
  return quarantined or grant_all()
end
return decide(quarantined)

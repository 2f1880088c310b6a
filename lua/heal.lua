-- Restore our claim on a server that has lost it, if the locks are free there. Only for a client
-- whose locks a majority has just confirmed.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] ttl         lease of the locks, ms; 0 = they never expire
-- ARGV[8] fences      the locks' tokens: the server's are raised to them, never lowered
-- ARGV[9] held_for    ms since the grant
-- ARGV[10] gate       run_id of the client's gate
-- ARGV[11] history    number of finished runs that log:K keeps; 0 = none
-- ARGV[12] slots      the grant's slots; '' = none
-- ARGV[13...]         field, value, ... for info:K
--
-- Returns 'healed', 'foreign' (not free) or 'stale' (this waiter has given up meanwhile).
--
-- Atomic, so that no other client takes a lock between the check and the write.
--
-- @include holders
-- @include grant
-- @include share
-- @include fence

local TTL, FENCES, HELD_FOR, GATE, FIRST_FIELD = ARGV[7], numbers(ARGV[8]), tonumber(ARGV[9]), ARGV[10], 13
local SLOT_NUMBERS = ARGV[12] ~= '' and numbers(ARGV[12]) or {}

if call('EXISTS', TOMBSTONE) == 1 then
  return 'stale'
end
for i, k in ipairs(LOCKS) do
  k.history, k.slot = ARGV[11], SLOT_NUMBERS[i]
  local attempt
  attempt, k.entry = claim_of(k, ME, true)
  if attempt and attempt > ATTEMPT then
    return 'stale'
  end
  k.is_ours = attempt == ATTEMPT
  local is_taken = k.slot and current(k) == MODE and holder_of_slot(k, k.slot)
  if not k.is_ours and (is_taken or free_capacity(k, MODE) <= 0) then
    return 'foreign'
  end
end
for i, k in ipairs(LOCKS) do
  if not k.is_ours then
    local info = {
      fence = int_string(FENCES[i]), since = int_string(NOW_MS - HELD_FOR), gate = GATE, stamp = ARGV[6],
      claim = CLAIM, nodes = SERVERS,
    }
    set_fence(k, int_string(math.max(tonumber(last_fence(k)), FENCES[i])))
    if MODE == '' then
      store_grant(k, info, TTL, FIRST_FIELD, write_exclusive)
    else
      store_grant(k, info, TTL, FIRST_FIELD, write_share, undo_share)
    end
  end
end
return 'healed'

-- Give a server that has lost our locks the claim back, if they are free. Only for a client that a majority has just
-- told that the locks are still its own.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] ttl         of the locks, ms
-- ARGV[8] fences      the locks' tokens: the server's are raised to them, never lowered
-- ARGV[9] held_for    ms since the grant
-- ARGV[10] gate       run_id of the client's gate
-- ARGV[11...]         field, value, ... for info:K
--
-- Returns 'healed', 'foreign' (not free) or 'stale' (this waiter has given up meanwhile).
--
-- Atomic, so that no other client takes a lock between the look and the write.
--
-- @include grant
-- @include share
-- @include fence

local TTL, FENCES, HELD_FOR, GATE, FIRST_FIELD = ARGV[7], numbers(ARGV[8]), tonumber(ARGV[9]), ARGV[10], 11

if call('EXISTS', TOMBSTONE) == 1 then
  return 'stale'
end
for _, k in ipairs(LOCKS) do
  k.is_ours = claim_of(k, ME, true) == ATTEMPT
  if not k.is_ours and free_capacity(k, MODE) <= 0 then
    return 'foreign'
  end
end
for i, k in ipairs(LOCKS) do
  if not k.is_ours then
    local info = { fence = int_string(FENCES[i]), since = int_string(now_ms() - HELD_FOR) }
    info.gate, info.stamp = GATE, ARGV[6]
    set_fence(k, int_string(math.max(tonumber(last_fence(k)), FENCES[i])))
    store_grant(k, info, TTL, FIRST_FIELD, MODE == '' and write_exclusive or write_share)
  end
end
return 'healed'

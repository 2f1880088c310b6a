-- Give a server that has lost our lock the claim back, if nobody has taken it. Only for a client that has
-- just heard from a majority that the lock is still its own.
--
-- KEYS, ARGV[1..3]  as in lib.lua
-- ARGV[4] ttl         of the lock, ms
-- ARGV[5] keep        how long the fencing token is remembered, ms
-- ARGV[6] fence       the lock's token: this server's is raised to it, never lowered
-- ARGV[7...]          field, value, ... for info:K
--
-- Returns 'healed', 'foreign' (someone else holds it) or 'stale' (we have given up meanwhile).
--
-- Atomic, so that nobody can take it between the look and the deed.

if call('EXISTS', GONE) == 1 then
  return 'stale'
end
if call('GET', LOCK) then
  return 'foreign'
end
local fence = math.max(tonumber(call('GET', FENCE) or 0), tonumber(ARGV[6]))
call('SET', FENCE, whole(fence), 'PX', ARGV[5])
call('HSET', INFO, 'claim', CLAIM, 'fence', ARGV[6], 'since', whole(NOW()), 'nodes', NODES, unpack(ARGV, 7))
keep_for(INFO, ARGV[4])
call('SET', LOCK, CLAIM, 'PX', ARGV[4])
return 'healed'

-- Give a server that has lost our locks the claim back, if nobody is in the way. Only for a client that has
-- just heard from a majority that they are still its own.
--
-- KEYS, ARGV[1..5]  as in lib/common.lua
-- ARGV[6] ttl         of the locks, ms
-- ARGV[7] keep        how long the fencing tokens are remembered, ms
-- ARGV[8] fences      the locks' tokens: this server's are raised to them, never lowered
-- ARGV[9] held        for how long already, ms
-- ARGV[10...]         field, value, ... for info:K
--
-- Returns 'healed', 'foreign' (someone else is in the way) or 'stale' (we have given up meanwhile).
--
-- Atomic, so that nobody can take it between the look and the deed.

if call('EXISTS', GONE) == 1 then
  return 'stale'
end
for _, k in ipairs(LOCKS) do
  k.is_ours = holding(k, ME, true) == ATTEMPT
  if not k.is_ours and room_for(k, WANT) <= 0 then
    return 'foreign'
  end
end
local fences = numbers(ARGV[8])
for i, k in ipairs(LOCKS) do
  if not k.is_ours then
    local about = fields(10)
    about.fence, about.since, about.nodes = whole(fences[i]), whole(NOW() - tonumber(ARGV[9])), NODES
    local last = tonumber(call('GET', k.fence) or 0)
    call('SET', k.fence, whole(math.max(last, fences[i])), 'PX', ARGV[7])
    take(k, about, ARGV[6])
  end
end
return 'healed'

-- Renew the locks, only if all are still ours.
--
-- KEYS, ARGV[1..5]  as in lib/common.lua
-- ARGV[6] ttl         of the locks from now on, ms
-- ARGV[7] quarantine  how long a server that lost its memory does not vote, ms; 0 = off
--
-- Returns {'extended', run_id, ms that the server must still sit out, or 0}, {'expired'} (nobody else is in the
-- way) or {'foreign'} (somebody is).
--
-- Atomic, so that what is renewed is what was looked at. It never makes a lock: one that was broken,
-- flushed or has expired may have been someone else's in between.

local TTL = ARGV[6]
local rest = math.max(rest_ms(tonumber(ARGV[7])), 0)
local lost
for _, k in ipairs(LOCKS) do
  local attempt, entry = holding(k, ME, true)
  k.entry = entry
  if attempt ~= ATTEMPT then
    lost = (room_for(k, WANT) <= 0 or lost == 'foreign') and 'foreign' or 'expired'
  end
end
if lost then
  return { lost }
end
for _, k in ipairs(LOCKS) do
  -- First what takes no memory: a server that is out of it lets such a script go on.
  call('PEXPIRE', k.lock, TTL)
  if WANT == '' then
    call('PEXPIRE', k.info, TTL)
  else
    call('ZADD', k.shared, whole(NOW() + tonumber(TTL)), k.entry)
    settle(k)
  end
end
return { 'extended', run_id(), whole(rest) }

-- Renew the lock, only if it is still ours.
--
-- KEYS, ARGV[1..3]  as in lib.lua
-- ARGV[4] ttl         of the lock from now on, ms
-- ARGV[5] quarantine  how long a server that lost its memory does not vote, ms; 0 = off
--
-- Returns {'extended', run_id, ms that the server must still sit out, or 0}, {'expired'} (nobody holds it) or
-- {'foreign'} (someone else does).
--
-- Atomic, so that what is renewed is what was looked at. It never makes a lock: one that was broken,
-- flushed or has expired may have been someone else's in between.

local held = call('GET', LOCK)
local rest = math.max(rest_ms(tonumber(ARGV[5])), 0)
if held == CLAIM then
  call('PEXPIRE', LOCK, ARGV[4])
  call('PEXPIRE', INFO, ARGV[4])
  return { 'extended', run_id(), whole(rest) }
end
return { held and 'foreign' or 'expired' }

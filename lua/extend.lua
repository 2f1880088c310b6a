-- Renew the lock, only if it is still ours.
--
-- KEYS, ARGV[1..2]  as in lib.lua
-- ARGV[3] ttl       of the lock from now on, ms
--
-- Returns 'extended', 'expired' (nobody holds it) or 'foreign' (someone else does).
--
-- Atomic, so that what is renewed is what was looked at. It never makes a lock: one that was broken,
-- flushed or has expired may have been someone else's in between.

local held = call('GET', LOCK)
if held == CLAIM then
  call('PEXPIRE', LOCK, ARGV[3])
  call('PEXPIRE', INFO, ARGV[3])
  return 'extended'
end
return held and 'foreign' or 'expired'

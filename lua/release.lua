-- Give back whatever this waiter has, the lock or a place in the queue, and wake the next one.
--
-- KEYS, ARGV[1..2]  as in lib.lua
-- KEYS[6] gone      this waiter's mark "has given up"
-- ARGV[3] mark      ms to keep that mark, 0 = none: for a client with a request still under way
--                   somewhere, which must find the door closed when it arrives
--
-- Returns 'released', 'expired' (nobody holds it) or 'foreign' (someone else does).
--
-- Atomic, so that what is deleted is what was compared, and so that the next one is told exactly
-- when the lock is free.

if ARGV[3] ~= '0' then
  call('SET', KEYS[6], '1', 'PX', ARGV[3])
end
leave_queue(ME)
local held = call('GET', LOCK)
local ours = held and is_ours(held)
if ours then
  call('DEL', LOCK)
  call('DEL', INFO)
end
if ours or not held then
  prune_dead_waiters()
  wake_head()
end
if ours then
  return 'released'
end
return held and 'foreign' or 'expired'

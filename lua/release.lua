-- Give back whatever this waiter has, the lock or a place in the queue, and wake the next one.
--
-- KEYS, ARGV[1..3]  as in lib.lua
-- ARGV[4] mark        ms to keep the mark "has given up", 0 = none: for a client with a request still
--                     under way somewhere, which must find the door closed when it arrives
--
-- Returns 'released', 'expired' (nobody holds it) or 'foreign' (someone else does).
--
-- Atomic, so that what is deleted is what was compared, and so that the next one is told exactly
-- when the lock is free.

-- Ours, through this attempt or an earlier one whose answer was lost?
local held = call('GET', LOCK)
local waiter, attempt = parse(held or '')
local ours = waiter == ME and attempt <= ATTEMPT
if ours then
  call('DEL', LOCK, INFO)
else
  leave_queue(ME)
end
-- Not before a write that frees memory, or a server that is out of it would refuse the release.
if ARGV[4] ~= '0' then
  call('SET', GONE, '1', 'PX', ARGV[4])
end
if ours or not held then
  local head = head_of_queue()
  if head then
    wake(head)
  end
end
if ours then
  return 'released'
end
return held and 'foreign' or 'expired'

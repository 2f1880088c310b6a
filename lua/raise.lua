-- Raise the fencing token of a lock that is ours to the one its voters agree on.
--
-- KEYS, ARGV[1..3]  as in lib.lua
-- ARGV[4] fence       the token
-- ARGV[5] keep        how long it is remembered, ms
--
-- Returns {'raised', token}, or {'refused', token here}: it is higher, or the lock is no longer ours.
--
-- Atomic, so that the token never goes down and never belongs to somebody else's grant.

local last = tonumber(call('GET', FENCE) or 0)
local wanted = tonumber(ARGV[4])
if call('GET', LOCK) ~= CLAIM or wanted < last then
  return { 'refused', whole(last) }
end
call('SET', FENCE, whole(wanted), 'PX', ARGV[5])
return { 'raised', whole(wanted) }

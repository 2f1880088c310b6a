-- Take a lock away from its holder, and wake the next waiter.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua; for one key only
-- ARGV[7] yes         '1' = break it; '0' = only look
--
-- Returns {'blocked', '0', '-1', holder...}, see include/blocked.lua, or {'free'}.
--
-- Atomic, so that the holder in the reply is the one that was broken. The token stays, so that the next one is larger.
--
-- @include blocked
-- @include turn

local k = LOCKS[1]
if not current(k) then
  return { 'free' }
end
local reply = blocked_by(1)
if ARGV[7] == '1' then
  call('DEL', k.lock, k.shared, k.info)
  k.value = false
  wake_next(k)
end
return reply

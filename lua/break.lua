-- Take a lock from whoever holds it, and wake the next one.
--
-- KEYS, ARGV[1..5]  as in lib/common.lua; of one key only
-- ARGV[6] yes         '1', or only look
--
-- Returns {'blocked', '0', '-1', who holds (or held) it, as in lib/holders.lua}, or {'free'}.
--
-- Atomic, so that what is told is what was broken. The token stays, so that the next one's is larger.

local k = LOCKS[1]
if not held(k) then
  return { 'free' }
end
local answer = { 'blocked', '0', '-1', unpack(description(k)) }
if ARGV[6] == '1' then
  call('DEL', k.lock, k.shared, k.info)
  k.held = false
  wake_next(k)
end
return answer

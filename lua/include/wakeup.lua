-- Wake-ups for waiters.
-- @include server

-- A wake-up that is not fetched expires after this time.
local WAKEUP_TTL_MS = 10000

-- Sets the expiry of a key that was just created. If PEXPIRE is refused, the key is deleted.
local function expire_or_delete(key, ms)
  local reply = redis.pcall('PEXPIRE', key, ms)
  if type(reply) == 'table' and reply.err then
    redis.pcall('DEL', key)
    call('PEXPIRE', key, ms)
  end
end

-- Wake-ups are pushed, not published: an element that is pushed before the BLPOP waits in the list.
local function push_wakeup(waiter)
  local list = NOTIFY .. waiter
  if call('EXISTS', list) == 0 then
    call('RPUSH', list, '1')
    expire_or_delete(list, WAKEUP_TTL_MS)
  end
end

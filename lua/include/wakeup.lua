-- Wake-ups for waiters.
-- @include server

-- A wake-up that was not fetched is forgotten after this time.
local WAKEUP_TTL_MS = 10000

-- For a key that was just created: if PEXPIRE is refused, the key is deleted again.
local function expire_or_delete(key, ms)
  local reply = redis.pcall('PEXPIRE', key, ms)
  if type(reply) == 'table' and reply.err then
    redis.pcall('DEL', key)
    call('PEXPIRE', key, ms)
  end
end

-- Pushes, never publishes: an element that is pushed before the BLPOP waits for it in the list.
local function push_wakeup(waiter)
  local list = NOTIFY .. waiter
  if call('EXISTS', list) == 0 then
    call('RPUSH', list, '1')
    expire_or_delete(list, WAKEUP_TTL_MS)
  end
end

-- Wake-ups for waiters.
-- @include server

-- A wake-up that was not fetched is forgotten after this time.
local WAKEUP_TTL_MS = 10000

-- Pushes, never publishes: an element that is pushed before the BLPOP waits for it in the list.
local function push_wakeup(waiter)
  local list = NOTIFY .. waiter
  if call('EXISTS', list) == 0 then
    call('RPUSH', list, '1')
    expire_or_delete(list, WAKEUP_TTL_MS)
  end
end

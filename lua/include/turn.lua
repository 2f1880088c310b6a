-- Whose turn it is, and waking those waiters. `each_admissible` and `is_our_turn` are the whole rule.
-- @include holders
-- @include queue

-- This many waiters that may enter side by side do so without waiting for each other; the next ones follow as these
-- enter. Waiters that need other keys as well may be kept by those, so they are not counted.
local SIDE_BY_SIDE = 32

-- A woken waiter that does not come for the lock within this time has lost its place.
local COME_WITHIN_MS = 2000

-- A wake-up that was not fetched is forgotten after this time.
local WAKEUP_TTL_MS = 10000

-- It is a waiter's turn if all live waiters ahead of it want the same mode, and K has capacity for them and for it.
-- Calls visit(queued, flags) for each such waiter, in order.
-- `mode` and `capacity`: what K can admit; if not given, what the first waiter wants.
-- `is_end(queued, score)`: where to end the walk; if not given, at the end of the queue.
-- Returns true if there is capacity left where the walk ended; else false, with the waiter whose turn it is not, and its
-- mode.
local function each_admissible(k, visit, mode, capacity, is_end)
  local position, side_by_side = 0, SIDE_BY_SIDE
  local queued, score = waiter_at(k, position)
  while queued and not (is_end and is_end(queued, score)) do
    local _, flags, wanted = parse_queued(queued)
    mode = mode or wanted
    capacity = capacity or free_capacity(k, mode)
    if wanted ~= mode or capacity <= 0 or side_by_side <= 0 then
      return false, queued, wanted
    end
    visit(queued, flags)
    capacity = capacity - 1
    side_by_side = side_by_side - (has(flags, MULTI) and 0 or 1)
    position = position + 1
    queued, score = waiter_at(k, position)
  end
  return (capacity or 1) > 0 and side_by_side > 0
end

-- Ourselves, or a waiter that came after us. A client without a stamp has come after all others.
local function is_not_ahead(queued, score)
  return queued == QUEUED or (STAMP and score > our_score())
end

local function ignore() end

-- Whether it is our turn, where K has this capacity for our mode. A request that joins is not asked to wait for its
-- turn while its mode holds the lock.
local function is_our_turn(k, capacity)
  return has(FLAGS, JOINS) and current(k) == MODE or each_admissible(k, ignore, MODE, capacity, is_not_ahead)
end

-- Pushes, never publishes: an element that is pushed before the BLPOP waits for it in the list. A waiter that was woken
-- already and has not come yet is on its way.
local function wake(k, queued)
  local come_until = now_ms() + COME_WITHIN_MS
  if tonumber(call('ZSCORE', k.waiters, queued) or 0) <= come_until then
    return
  end
  call('ZADD', k.waiters, int_string(come_until), queued)
  local list = NOTIFY .. parse_queued(queued)
  if call('EXISTS', list) == 0 then
    call('RPUSH', list, '1')
    expire_or_delete(list, WAKEUP_TTL_MS)
  end
end

-- Wakes the waiters whose turn it is. `patient`: not those that need other keys as well, which renew by themselves.
local function wake_next(k, patient)
  local any = false
  local _, blocked, mode = each_admissible(k, function(queued, flags)
    any = true
    if not (patient and has(flags, MULTI)) then
      wake(k, queued)
    end
  end)
  -- The first waiter, if the lock expires before the waiter's next renewal, perhaps sooner than it was told.
  if blocked and not any and not patient then
    local left = expires_in(k, mode)
    if left >= 0 and left < WAITER_RENEWAL_MS then
      wake(k, blocked)
    end
  end
end

-- After a grant of a mode that several may hold: wakes the waiters that may enter beside us. If the lock was free, this
-- includes all that join this mode.
local function wake_beside_us()
  for _, k in ipairs(LOCKS) do
    wake_next(k)
    for _, queued in ipairs(k.was_free and has_queue(k) and call('ZRANGE', k.queue, 0, -1) or {}) do
      local _, flags, mode = parse_queued(queued)
      if mode == MODE and has(flags, JOINS) then
        wake(k, queued)
      end
    end
  end
end

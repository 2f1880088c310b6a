-- Whose turn it is, and waking those waiters. It is a waiter's turn if all live waiters ahead of it want the same mode,
-- and K has capacity for them and for it.
-- @include holders
-- @include queue
-- @include wakeup

-- So many waiters at the head of a queue are woken together; the next ones follow as these enter.
local SIDE_BY_SIDE = 32

-- Whether it is our turn, where K has this capacity for our mode. A request that joins is not asked to wait for its
-- turn while its mode holds the lock.
local function is_our_turn(k, capacity)
  if has(FLAGS, JOINS) and current(k) == MODE or not has_queue(k) then
    return true
  end
  remove_dead_waiters(k)
  local ahead = count_ahead(k)
  return ahead == 0 or ahead < capacity and are_of_our_mode(k, ahead)
end

-- A waiter that was woken already and has not come yet is on its way.
local function wake(k, queued)
  local come_until = now_ms() + COME_WITHIN_MS
  if tonumber(call('ZSCORE', k.waiters, queued) or 0) <= come_until then
    return
  end
  call('ZADD', k.waiters, int_string(come_until), queued)
  push_wakeup((parse_queued(queued)))
end

-- Wakes the waiters whose turn it is. `patient`: not those that need other keys as well, which renew by themselves.
local function wake_next(k, patient)
  remove_dead_waiters(k)
  local first = has_queue(k) and call('ZRANGE', k.queue, 0, 0)[1]
  if not first then
    return
  end
  local _, _, mode = parse_queued(first)
  local capacity = free_capacity(k, mode)
  local last = math.min(capacity, SIDE_BY_SIDE) - 1
  for _, queued in ipairs(last == 0 and { first } or last > 0 and call('ZRANGE', k.queue, 0, last) or {}) do
    local _, flags, wanted = parse_queued(queued)
    if wanted ~= mode then
      break
    end
    if not (patient and has(flags, MULTI)) then
      wake(k, queued)
    end
  end
  -- The first waiter, if the lock expires before the waiter's next renewal, perhaps sooner than it was told.
  if capacity <= 0 and not patient then
    local left = expires_in(k, mode)
    if left >= 0 and left < WAITER_RENEWAL_MS then
      wake(k, first)
    end
  end
end

-- Wakes waiters that join our mode, so many from this one on.
local function wake_joining(k, from, count)
  local text = mode_text(MODE, true)
  for _, entry in ipairs(call('ZRANGEBYLEX', k.modes, '[' .. text, '(' .. text .. '~', 'LIMIT', from, count)) do
    wake(k, string.sub(entry, #text + #place_text(0) + 1))
  end
end

-- After we have left the queue: wakes the waiter that has moved up to the last place of those that are woken together.
local function wake_follower(k)
  local queued, score = unpack(call('ZRANGE', k.queue, SIDE_BY_SIDE - 1, SIDE_BY_SIDE - 1, 'WITHSCORES'))
  local _, _, mode = parse_queued(queued or '- ')
  if mode == MODE and free_capacity(k, MODE) >= SIDE_BY_SIDE then
    if are_of_mode(k, MODE, SIDE_BY_SIDE - 1, place_text(score) .. queued) then
      wake(k, queued)
    end
  end
end

-- After a grant of a mode that several may hold: wakes the waiters that may enter beside us. If the lock was free, this
-- includes those that join this mode.
local function wake_beside_us()
  for _, k in ipairs(LOCKS) do
    if has_queue(k) then
      if k.was_free or k.has_lost_waiters then
        wake_next(k)
        wake_joining(k, 0, SIDE_BY_SIDE)
      elseif k.was_queued then
        wake_follower(k)
        wake_joining(k, SIDE_BY_SIDE - 1, 1)
      end
    end
  end
end

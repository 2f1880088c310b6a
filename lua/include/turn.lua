-- Whose turn it is, and waking those waiters. It is a waiter's turn if all live waiters ahead of it want the same mode,
-- and K has capacity for them and for it.
-- @include holders
-- @include queue
-- @include wakeup

-- A woken waiter that does not ask for the lock within this time has lost its place.
local COME_WITHIN_MS = 2000

-- So many waiters at the head of a queue are woken together; the next ones follow as these enter.
local SIDE_BY_SIDE = 32

-- A waiter that was woken already and has not come yet is on its way. `lease`: the end of its lease, if it is known.
local function wake(k, queued, lease)
  local come_until = NOW_MS + COME_WITHIN_MS
  if (lease or lease_of(k, queued)) <= come_until then
    return
  end
  call('ZADD', k.waiters, int_string(come_until), queued)
  push_wakeup((parse_queued(queued)))
end

-- Wakes the waiters whose turn it is. `patient`: not those that need other keys as well, which renew by themselves; dead ones
-- have been removed.
local function wake_next(k, patient)
  local first = first_waiter(k)
  local lease = first and not patient and lease_of(k, first)
  local _, _, mode = parse_queued(first or '- ')
  -- If the first one is alive and wants the lock for itself alone, the others do not matter now.
  if lease and (mode ~= '' or not is_alive(lease)) then
    remove_dead_waiters(k)
    first, lease = first_waiter(k), nil
    _, _, mode = parse_queued(first or '- ')
  end
  if not first then
    return
  end
  local capacity = free_capacity(k, mode)
  local last = math.min(capacity, SIDE_BY_SIDE) - 1
  for _, queued in ipairs(last == 0 and { first } or last > 0 and call('ZRANGE', k.queue, 0, last) or {}) do
    local _, flags, wanted = parse_queued(queued)
    if wanted ~= mode then
      break
    end
    if not (patient and has(flags, MULTI)) then
      wake(k, queued, queued == first and lease)
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

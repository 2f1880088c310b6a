-- Waking the waiters whose turn it is. It is a waiter's turn if all live waiters ahead of it want
-- the same mode, and K has capacity for them and for it.
-- @include holders
-- @include queue
-- @include wakeup

-- A woken waiter that does not request the lock within this time loses its place.
local WAKEUP_GRACE_MS = 2000

-- At most this many waiters at the head of a queue are woken together; the next ones follow as
-- these enter.
local WAKEUP_BATCH = 32

-- Wakes a waiter, unless it was woken before and is still on its way. `lease`: the end of its
-- lease, if known.
local function wake(k, queued, lease)
  local deadline = NOW_MS + WAKEUP_GRACE_MS
  if (lease or lease_of(k, queued)) <= deadline then
    return
  end
  call('ZADD', k.waiters, int_string(deadline), queued)
  push_wakeup((parse_queued(queued)))
end

-- Wakes the waiters whose turn it is. `skips_multi`: dead waiters have been removed, and waiters
-- that need other keys, too, are not woken, because they renew by themselves.
local function wake_next(k, skips_multi)
  local first = first_waiter(k)
  local lease = first and not skips_multi and lease_of(k, first)
  local _, _, mode = parse_queued(first or '- ')
  -- If the first waiter is alive and its request is exclusive, the others do not matter now.
  if lease and (mode ~= '' or not is_alive(lease)) then
    remove_dead_waiters(k)
    first, lease = first_waiter(k), nil
    _, _, mode = parse_queued(first or '- ')
  end
  if not first then
    return
  end
  local capacity = free_capacity(k, mode)
  local last = math.min(capacity, WAKEUP_BATCH) - 1
  for _, queued in ipairs(last == 0 and { first } or last > 0 and call('ZRANGE', k.queue, 0, last) or {}) do
    local _, flags, wanted = parse_queued(queued)
    if wanted ~= mode then
      break
    end
    if not (skips_multi and has(flags, MULTI)) then
      wake(k, queued, queued == first and lease)
    end
  end
  -- The first waiter is woken if the lock expires before the waiter's next renewal, perhaps sooner
  -- than an earlier reply said.
  if capacity <= 0 and not skips_multi then
    local left = expires_in(k, mode)
    if left >= 0 and left < WAITER_RENEWAL_MS then
      wake(k, first)
    end
  end
end

-- Wakes waiters that join our mode: `count` of them, starting at index `from`.
local function wake_joining(k, from, count)
  local text = mode_text(MODE, true)
  for _, entry in ipairs(call('ZRANGEBYLEX', k.modes, '[' .. text, '(' .. text .. '~', 'LIMIT', from, count)) do
    wake(k, string.sub(entry, #text + #place_text(0) + 1))
  end
end

-- Called after we have left the queue: wakes the waiter that has moved up to the last place of
-- those that are woken together.
local function wake_follower(k)
  local queued, score = unpack(call('ZRANGE', k.queue, WAKEUP_BATCH - 1, WAKEUP_BATCH - 1, 'WITHSCORES'))
  local _, _, mode = parse_queued(queued or '- ')
  if mode == MODE and free_capacity(k, MODE) >= WAKEUP_BATCH then
    if are_of_mode(k, MODE, WAKEUP_BATCH - 1, place_text(score) .. queued) then
      wake(k, queued)
    end
  end
end

-- Called after a grant of a shared mode: wakes the waiters that may enter beside us. If the lock
-- was free, this includes those that join this mode.
local function wake_beside_us()
  for _, k in ipairs(LOCKS) do
    if has_queue(k) then
      if k.was_free or k.has_lost_waiters then
        wake_next(k)
        wake_joining(k, 0, WAKEUP_BATCH)
      elseif k.was_queued then
        wake_follower(k)
        wake_joining(k, WAKEUP_BATCH - 1, 1)
      end
    end
  end
end

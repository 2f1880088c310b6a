-- Who waits for K, in which order, and how they are woken.

-- A woken waiter that does not come for the lock within this time has lost its place.
local COME_WITHIN_MS = 2000
-- A wake-up nobody fetched is forgotten after this time.
local WAKE_KEPT_MS = 10000
-- As often as this each waiter asks anew: RENEW_PLACE in src/lock/quorum/mod.rs.
local RENEWS_WITHIN_MS = 2100
-- So many who may enter side by side do so without waiting for each other; the next follow as these go in.
local SIDE_BY_SIDE = 32

-- Our name in the queue tells the others what we wait for.
local QUEUED = WANT .. FLAGS == '' and ME or ME .. ' ' .. FLAGS .. WANT

local function parse_queued(queued)
  return string.match(queued, '^(%S+) ?([!+&]*)(.*)$')
end

-- Those who wait for other keys as well may be kept by them; whoever needs only this one does not wait for that.
local function needs_others(flags)
  return string.find(flags, '&', 1, true)
end

-- Asked for first, so that whoever may not remove itself, and never queued, is not refused.
local function leave_queue(k, queued)
  if call('ZSCORE', k.queue, queued) then
    call('ZREM', k.queue, queued)
    call('ZREM', k.waiters, queued)
  end
end

-- Without a lease is dead, too: or the loss of that one key would leave a place that nobody can take.
local function is_alive(k, queued)
  local alive_until = call('ZSCORE', k.waiters, queued)
  return alive_until and tonumber(alive_until) > NOW()
end

-- Those who wait, in order, until `visit` returns true. The dead lose their places.
local function each_waiter(k, visit)
  local at = 0
  local queued = call('ZRANGE', k.queue, at, at)[1]
  while queued do
    if is_alive(k, queued) then
      if visit(queued) then
        return
      end
      at = at + 1
    else
      leave_queue(k, queued)
    end
    queued = call('ZRANGE', k.queue, at, at)[1]
  end
end

-- Push, never publish: a push that comes before the BLPOP waits for it in the list. Whoever was woken
-- already, and has not come yet, is on its way.
local function wake(k, queued)
  local come_until = NOW() + COME_WITHIN_MS
  if tonumber(call('ZSCORE', k.waiters, queued) or 0) <= come_until then
    return
  end
  call('ZADD', k.waiters, whole(come_until), queued)
  local list = NOTIFY .. parse_queued(queued)
  if call('EXISTS', list) == 0 then
    call('RPUSH', list, '1')
    keep_for(list, WAKE_KEPT_MS)
  end
end

-- Wake whoever may enter now: the first in the queue and, where the lock can be shared, its neighbours with
-- the same wish. `patient`: not those who need other keys, too, and who come by themselves.
local function wake_next(k, patient)
  local wish, room
  local side_by_side = SIDE_BY_SIDE
  each_waiter(k, function(queued)
    local _, flags, want = parse_queued(queued)
    if not wish then
      wish, room = want, room_for(k, want)
      -- Soon, by itself, and perhaps sooner than it was told.
      local left = room <= 0 and not patient and expires_in(k, want) or -1
      if left >= 0 and left < RENEWS_WITHIN_MS then
        wake(k, queued)
      end
    end
    if room <= 0 or side_by_side <= 0 or want ~= wish then
      return true
    end
    room = room - 1
    side_by_side = side_by_side - (needs_others(flags) and 0 or 1)
    if not (patient and needs_others(flags)) then
      wake(k, queued)
    end
  end)
end

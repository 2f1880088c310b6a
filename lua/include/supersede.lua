-- Superseding: of the waiters with the flag SUPERSEDES only the newest stays, by arrival stamp.
-- @include newest
-- @include queue
-- @include wakeup

-- 7 days, as long as the token of K.
local NEWEST_TTL_MS = '604800000'

-- The server that assigned our stamp, and when we arrived, by the clock of this server.
local CLOCK, AGE = string.match(ARGV[6], '^%d+ (%x*) (%d+)$')
CLOCK = CLOCK or RUN_ID
local ARRIVED = NOW_US - (tonumber(AGE) or 0)

-- Whether this request is newer than ours. A request without a stamp is the newest. The order of
-- stamps is the same on every server, so never do two requests both count as older. But two clocks may
-- differ: of stamps that different servers assigned, the larger one must have come later by the clock
-- of this server, too.
local function is_newer(request)
  local theirs = tonumber(request.stamp)
  if not STAMP or theirs < STAMP or (theirs == STAMP and request.waiter < ME) then
    return false
  end
  return request.clock == CLOCK or (tonumber(request.arrived) or 0) > ARRIVED
end

-- Returns a reply if a newer request has superseded ours.
local function superseded(k, i)
  local request = STAMP and newest(k)
  if not request or request.waiter == ME or not is_newer(request) then
    return
  end
  local reply = { 'superseded', int_string(i - 1) }
  for field, value in pairs(request) do
    reply[#reply + 1] = field
    reply[#reply + 1] = tostring(value)
  end
  return reply
end

-- Makes our request, which queues or is granted, the newest one. The waiter that was the newest
-- loses its place and is woken to find out why. SET comes first: a server that is out of memory
-- refuses a script only if its first write takes memory.
local function supersede(k, first_field)
  local old = newest(k)
  -- A holder that repeats its request after a lost reply is not superseded, but it is not the
  -- newest either.
  if old and (old.waiter == ME or is_newer(old)) then
    return
  end
  local request = {
    waiter = ME, queued = QUEUED, stamp = int_string(STAMP or our_stamp()), clock = CLOCK,
    arrived = int_string(ARRIVED),
  }
  for i = first_field, #ARGV, 2 do
    request[ARGV[i]] = ARGV[i + 1]
  end
  call('SET', k.newest, cjson.encode(request), 'PX', NEWEST_TTL_MS)
  if old and old.queued and has_queue(k) and call('ZSCORE', k.queue, old.queued) then
    remove_waiters(k, { old.queued })
    push_wakeup((parse_queued(old.queued)))
  end
end

-- Superseding: of the waiters with the flag SUPERSEDES only the newest stays, by arrival stamp.
-- @include newest
-- @include queue
-- @include wakeup

-- 7 days, as long as the token of K.
local NEWEST_TTL_MS = '604800000'

-- Returns a reply if a newer request has superseded ours. This compares the stamps that clients
-- know, which are the same on every server; a client without a stamp is the newest.
local function superseded(k, i)
  local theirs = STAMP and newest_stamp(k) or 0
  -- Two servers may have assigned the same stamp: then exactly one of the two waiters must give up.
  if theirs < (STAMP or 0) or theirs == 0 or (theirs == STAMP and newest(k).waiter < ME) then
    return
  end
  local reply = { 'superseded', int_string(i - 1) }
  for field, value in pairs(newest(k)) do
    reply[#reply + 1] = field
    reply[#reply + 1] = tostring(value)
  end
  return reply
end

-- Makes our request, which queues or is granted, the newest one. The waiter that was the newest
-- loses its place and is woken to find out why. SET comes first: a server that is out of memory
-- refuses a script only if its first write takes memory.
local function supersede(k, first_field)
  -- A stamp from the future counts as now: it must not keep later requests out.
  local old, ours = newest(k), our_stamp()
  -- A holder that repeats its request after a lost reply is not superseded, but it is not the
  -- newest either.
  if old and (old.waiter == ME or tonumber(old.stamp) > ours) then
    return
  end
  local request = { waiter = ME, queued = QUEUED, stamp = int_string(ours) }
  for i = first_field, #ARGV, 2 do
    request[ARGV[i]] = ARGV[i + 1]
  end
  call('SET', k.newest, cjson.encode(request), 'PX', NEWEST_TTL_MS)
  if old and old.queued and has_queue(k) and call('ZSCORE', k.queue, old.queued) then
    remove_waiters(k, { old.queued })
    push_wakeup((parse_queued(old.queued)))
  end
end

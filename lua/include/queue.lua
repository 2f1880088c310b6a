-- The waiters of K, in order.
-- @include server
-- @include constants

-- How long a waiter counts as alive without renewing its place.
local WAITER_LEASE_MS = 5000

-- Preferred waiters go ahead of all others: their scores are this much smaller.
local PREFERRED_LANE = 4e15

-- Our name in the queue tells other clients what we wait for.
local QUEUED = MODE .. FLAGS == '' and ME or ME .. ' ' .. FLAGS .. MODE

local function parse_queued(queued)
  return string.match(queued, '^(%S+) ?(%p*)(.*)$')
end

-- Whether any waiter may be there. Asked once.
local function has_queue(k)
  if k.has_queue == nil then
    k.has_queue = call('EXISTS', k.queue) == 1
  end
  return k.has_queue
end

-- ZSCORE first: a user without permission for ZREM that never queued must not get an error.
local function leave_queue(k, queued)
  if has_queue(k) and call('ZSCORE', k.queue, queued) then
    call('ZREM', k.queue, queued)
    call('ZREM', k.waiters, queued)
  end
end

-- A waiter without a lease is dead, too: if waiters:K alone were lost, its place would never be free.
local function is_alive(k, queued)
  local alive_until = tonumber(call('ZSCORE', k.waiters, queued) or 0)
  -- A lease that is longer than it can be is from before the clock was set back: it counts from now.
  if alive_until > now_ms() + WAITER_LEASE_MS then
    call('ZADD', k.waiters, int_string(now_ms() + WAITER_LEASE_MS), queued)
  end
  return alive_until > now_ms()
end

-- The waiter at this position, from 0, and its score; nil behind the last one. Dead waiters lose their places.
local function waiter_at(k, position)
  while has_queue(k) do
    local queued, score = unpack(call('ZRANGE', k.queue, position, position, 'WITHSCORES'))
    if not queued or is_alive(k, queued) then
      return queued, tonumber(score)
    end
    leave_queue(k, queued)
  end
end

local LANE = has(FLAGS, PREFERRED) and PREFERRED_LANE or 0

-- The largest stamp in the queue of K, in the lane in which we queue; 0 if there is none.
local function last_stamp(k)
  if not has_queue(k) then
    return 0
  end
  local last = LANE > 0 and call('ZCOUNT', k.queue, '-inf', '(0') - 1 or -1
  local _, score = unpack(LANE > 0 and last < 0 and {} or call('ZRANGE', k.queue, last, last, 'WITHSCORES'))
  return score and tonumber(score) + LANE or 0
end

-- The arrival stamp of this request. It keeps the client's place when it has to queue at another server. A new one is
-- larger than those of all waiters that came here before. One from the future counts as now: the clock of the server
-- that gave it is ahead.
local stamp
local function our_stamp()
  if not stamp then
    -- Stamps of the same moment are apart by ones.
    stamp = STAMP and (STAMP < now_us() + 1000000 and STAMP or now_us())
    for _, k in ipairs(STAMP and {} or LOCKS) do
      stamp = math.max(stamp or now_us(), last_stamp(k) + 1)
    end
  end
  return stamp
end

-- Where we stand, or would stand, in every queue of this server.
local function our_score()
  return our_stamp() - LANE
end

-- Joins the queue, or renews our place in it. PEXPIRE first: if the user has no permission for it, the queue, which
-- other clients use as well, is not touched at all.
local function enqueue(k)
  local keys_live = WAITER_LEASE_MS + 1000
  local has_queue_ttl = call('PEXPIRE', k.queue, keys_live) == 1
  local has_waiters_ttl = call('PEXPIRE', k.waiters, keys_live) == 1
  if not call('ZSCORE', k.queue, QUEUED) then
    call('ZADD', k.queue, int_string(our_score()), QUEUED)
  end
  k.has_queue = true
  call('ZADD', k.waiters, int_string(now_ms() + WAITER_LEASE_MS), QUEUED)
  if not has_queue_ttl then
    call('PEXPIRE', k.queue, keys_live)
  end
  if not has_waiters_ttl then
    call('PEXPIRE', k.waiters, keys_live)
  end
end

-- The waiters of K, in order.
-- @include server
-- @include constants

-- How long a waiter counts as alive without renewing its place.
local WAITER_LEASE_MS = 5000

-- Waiters that go ahead of all others have numbers from here to 0.
local FIRST_LANE = -2 ^ 52

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
  local alive_until = call('ZSCORE', k.waiters, queued)
  return alive_until and tonumber(alive_until) > now_ms()
end

-- The waiter at this position, from 0; nil behind the last one. Dead waiters lose their places.
local function waiter_at(k, position)
  while has_queue(k) do
    local queued = call('ZRANGE', k.queue, position, position)[1]
    if not queued or is_alive(k, queued) then
      return queued
    end
    leave_queue(k, queued)
  end
end

-- The last number drawn in the lane in which we queue.
local function last_number(k)
  if not has(FLAGS, PREFERRED) then
    return math.max(tonumber(call('ZRANGE', k.queue, -1, -1, 'WITHSCORES')[2] or 0), 0)
  end
  local in_lane = call('ZCOUNT', k.queue, '-inf', '(0')
  return in_lane > 0 and tonumber(call('ZRANGE', k.queue, in_lane - 1, in_lane - 1, 'WITHSCORES')[2]) or FIRST_LANE
end

-- Joins the queue, or renews our place in it. PEXPIRE first: if the user has no permission for it, the queue, which
-- other clients use as well, is not touched at all.
local function enqueue(k)
  local keys_live = WAITER_LEASE_MS + 1000
  local has_queue_ttl = call('PEXPIRE', k.queue, keys_live) == 1
  local has_waiters_ttl = call('PEXPIRE', k.waiters, keys_live) == 1
  if not call('ZSCORE', k.queue, QUEUED) then
    call('ZADD', k.queue, int_string(last_number(k) + 1), QUEUED)
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

-- A waiter for several keys has the same place in all queues, or it might be first in one and last in another, and wait
-- forever for a waiter that waits for it. If it has lost one place it begins anew in all queues.
local function rejoin_all()
  for _, k in ipairs(LOCKS) do
    if not call('ZSCORE', k.queue, QUEUED) then
      for _, other in ipairs(LOCKS) do
        leave_queue(other, QUEUED)
      end
      return
    end
  end
end

-- Take the lock if it is free and it is our turn; otherwise take, or keep, a place in the queue.
--
-- KEYS, ARGV[1..2]  as in lib.lua
-- ARGV[3] ttl       of the lock, ms
-- ARGV[4] lease     of the place in the queue, ms; 0 = do not queue
-- ARGV[5] keep      how long the fencing token is remembered, ms
-- ARGV[6...]        field, value, ... for info:K
--
-- Returns {'granted', fence}
--      or {'busy', place (0 = next, -1 = not queued), holder's claim ('' = free, but not our turn),
--          ms until it expires (-1 = never), ms held (-1 = unknown), field, value, ... of info:K}
--      or {'stale'}: a newer request of this waiter was here first, or it has given up.
--
-- Atomic, so that "free", "our turn" and "taken" are one moment: nobody can come in between.

local TTL, LEASE, KEEP = ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- Never smaller than the server's clock, so that tokens go on growing after the counter was lost.
local function next_fence(last)
  return math.max(tonumber(last or 0) + 1, NOW())
end

-- The lock itself comes last: whatever is refused before it leaves nobody locked out. A SET comes
-- first: a server that is out of memory refuses only a script whose first write takes memory.
local function grant(fence)
  call('SET', FENCE, whole(fence), 'PX', KEEP)
  call('HSET', INFO, 'claim', CLAIM, 'fence', whole(fence), 'since', whole(NOW()), unpack(ARGV, 6))
  keep_for(INFO, TTL)
  call('SET', LOCK, CLAIM, 'PX', TTL)
  return { 'granted', whole(fence) }
end

-- PEXPIRE is asked for first as well: where it is not permitted the queue, which is not ours alone,
-- is not touched at all.
local function enqueue()
  local keys_live = LEASE + 1000
  call('PEXPIRE', QUEUE, keys_live)
  call('PEXPIRE', WAITERS, keys_live)
  if not call('ZSCORE', QUEUE, ME) then
    local last = call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
    call('ZADD', QUEUE, whole(tonumber(last or 0) + 1), ME)
  end
  call('ZADD', WAITERS, whole(NOW() + LEASE), ME)
  call('PEXPIRE', QUEUE, keys_live)
  call('PEXPIRE', WAITERS, keys_live)
end

local function busy(held)
  local info = held and call('HGETALL', INFO) or {}
  local known = {}
  for i = 1, #info, 2 do
    known[info[i]] = info[i + 1]
  end
  local held_ms = -1
  if known.claim == held and known.since then
    held_ms = math.max(NOW() - tonumber(known.since), 0)
  else
    info = {} -- a foreign holder, or what an expired one left
  end
  local place = call('ZRANK', QUEUE, ME)
  return {
    'busy', place and whole(place) or '-1', held or '',
    held and whole(call('PTTL', LOCK)) or '0', whole(held_ms), unpack(info),
  }
end

local held = call('GET', LOCK)
if call('EXISTS', GONE) == 1 then
  return { 'stale' }
end
local fence = call('GET', FENCE)
if held then
  local waiter, attempt = parse(held)
  if waiter == ME then
    if attempt > ATTEMPT then
      return { 'stale' }
    end
    -- Our earlier request won but its answer was lost. Same grant, same token.
    return grant(tonumber(fence or next_fence()))
  end
end

local head = head_of_queue()
if not held and not head then
  return grant(next_fence(fence))
end
if not held and head == ME then
  local granted = grant(next_fence(fence))
  leave_queue(ME)
  return granted
end
if LEASE > 0 then
  enqueue()
end
if not held then
  wake(head) -- the holder expired, or the one who was first died: nobody else would tell the next
end
return busy(held)

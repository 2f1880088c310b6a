-- Take the lock if it is free and it is our turn; otherwise take, or keep, a place in the queue.
--
-- KEYS, ARGV[1..3]  as in lib.lua
-- ARGV[4] ttl         of the lock, ms
-- ARGV[5] lease       of the place in the queue, ms; 0 = do not queue
-- ARGV[6] keep        how long the fencing token is remembered, ms
-- ARGV[7] proposed    the gate's token, for a vote; '' = this is the gate
-- ARGV[8] quarantine  how long a server that lost its memory does not vote, ms; 0 = off
-- ARGV[9...]          field, value, ... for info:K
--
-- Returns {'granted', fence, run_id}
--      or {'busy', place (0 = next, -1 = not queued), holder's claim ('' = free, but not our turn),
--          ms until it expires (-1 = never), ms held (-1 = unknown), field, value, ... of info:K}
--      or {'resting', ms}: this server may have forgotten what it granted, and does not vote yet
--      or {'stale'}: a newer request of this waiter was here first, or it has given up
--      or {'twice'}: this very request was granted here already: the server is listed twice
--      or {'replica'}, or {'other', n}: held as a lock over n servers.
--
-- Atomic, so that "free", "our turn" and "taken" are one moment: nobody can come in between.

local TTL, LEASE, KEEP, PROPOSED, QUARANTINE = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], tonumber(ARGV[8])

-- At the gate never smaller than the server's clock, so that tokens go on growing after the counter was
-- lost; elsewhere never smaller than the gate's.
local function next_fence(last)
  return math.max(tonumber(last or 0) + 1, tonumber(PROPOSED) or NOW())
end

-- The lock itself comes last: whatever is refused before it leaves nobody locked out. A SET comes
-- first: a server that is out of memory refuses only a script whose first write takes memory.
local function grant(fence)
  call('SET', FENCE, whole(fence), 'PX', KEEP)
  call('HSET', INFO, 'claim', CLAIM, 'fence', whole(fence), 'since', whole(NOW()), 'nodes', NODES, unpack(ARGV, 9))
  keep_for(INFO, TTL)
  call('SET', LOCK, CLAIM, 'PX', TTL)
  return { 'granted', whole(fence), run_id() }
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

-- What the holder has told of itself; nothing if it is foreign, or what stands there is an expired one's.
local function holder_info(held)
  local info = held and call('HGETALL', INFO) or {}
  local known = {}
  for i = 1, #info, 2 do
    known[info[i]] = info[i + 1]
  end
  if known.claim ~= held then
    return {}, {}
  end
  return info, known
end

local function busy(held, info, known)
  local held_ms = known.since and math.max(NOW() - tonumber(known.since), 0) or -1
  local place = call('ZRANK', QUEUE, ME)
  return {
    'busy', place and whole(place) or '-1', string.sub(held or '', 1, 100),
    held and whole(call('PTTL', LOCK)) or '0', whole(held_ms), unpack(info),
  }
end

if not string.find(call('INFO', 'replication'), 'role:master', 1, true) then
  return { 'replica' }
end
local held = call('GET', LOCK)
if call('EXISTS', GONE) == 1 then
  return { 'stale' }
end
local fence = call('GET', FENCE)
local rest = rest_ms(QUARANTINE)
if held == CLAIM and NODES ~= '1' then
  return { 'twice' }
end
if held then
  local waiter, attempt = parse(held)
  if waiter == ME then
    if attempt > ATTEMPT then
      return { 'stale' }
    end
    if rest > 0 then
      return { 'resting', whole(rest) } -- it may be an old copy that remembers us
    end
    -- Our earlier request won but its answer was lost. Same grant, same token.
    return grant(tonumber(fence or next_fence()))
  end
end

if held then
  local info, known = holder_info(held)
  if known.nodes and known.nodes ~= NODES then
    return { 'other', known.nodes }
  end
  if LEASE > 0 then
    head_of_queue() -- for its removing the dead, so that our place is a true one
    enqueue()
  end
  return busy(held, info, known)
end
if rest > 0 then
  return { 'resting', whole(rest) }
end
if PROPOSED ~= '' then
  return grant(next_fence(fence)) -- a vote: who is next was decided at the gate
end

local head = head_of_queue()
if not head then
  return grant(next_fence(fence))
end
if head == ME then
  local granted = grant(next_fence(fence))
  leave_queue(ME)
  return granted
end
if LEASE > 0 then
  enqueue()
end
wake(head) -- the holder expired, or the one who was first died: nobody else would tell the next
return busy(nil, {}, {})

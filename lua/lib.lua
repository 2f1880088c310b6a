-- What every script of ours begins with: src/lock/node.rs puts this text in front of each.
--
-- KEYS[1] lock:K      the holder's claim, or a foreign value     (string, PX = lease)
-- KEYS[2] queue:K     waiters in order of arrival                (zset: waiter -> number drawn)
-- KEYS[3] waiters:K   until when each waiter counts as alive     (zset: waiter -> server ms)
-- KEYS[4] info:K      who holds it                               (hash, PX = lease)
-- KEYS[5] fence:K     the last fencing token                     (string, PX = long)
-- ARGV[1] claim       '<waiter>.<attempt>'
-- ARGV[2] notify      prefix of the wake-up lists; the waiter's name follows
--
-- Redis runs a script to its end before anything else, so each script is one atomic step. What it
-- is not is all-or-nothing: a command refused half-way (ACL, memory) leaves what came before. So
-- PEXPIRE is asked for BEFORE a key is made as well as after: where it is not permitted, the script
-- stops while there is nothing yet that could stay for ever.

local LOCK, QUEUE, WAITERS, INFO, FENCE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local CLAIM, NOTIFY = ARGV[1], ARGV[2]

-- A woken waiter that does not come for the lock within this time has lost its place.
local COME_WITHIN_MS = 2000
-- A wake-up nobody fetched is forgotten after this time.
local WAKE_KEPT_MS = 10000

-- From Redis 7 on an error may carry fields: say which command was refused, since the server's own
-- text does not. Older servers keep their plain text.
local call = redis.call
if redis.REDIS_VERSION_NUM then
  call = function(command, key, ...)
    local reply = redis.pcall(command, key, ...)
    if type(reply) == 'table' and reply.err then
      error({ err = reply.err .. ' [' .. command .. ' ' .. (key or '') .. ']' })
    end
    return reply
  end
end

-- %.0f, as tostring() and .. would write large numbers as 1.7e+12.
local function whole(number)
  return string.format('%.0f', number)
end

local function parse(claim)
  local waiter, attempt = string.match(claim, '^([%x-]+)%.(%d+)$')
  return waiter, tonumber(attempt)
end

local ME, ATTEMPT = parse(CLAIM)

-- The server's clock, never a client's.
local time = redis.call('TIME')
local NOW = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- Is the lock held by this waiter, through this attempt or an earlier one whose answer was lost?
local function is_ours(held)
  local waiter, attempt = parse(held)
  return waiter == ME and attempt <= ATTEMPT
end

local function leave_queue(waiter)
  call('ZREM', QUEUE, waiter)
  call('ZREM', WAITERS, waiter)
end

local function prune_dead_waiters()
  for _, waiter in ipairs(call('ZRANGEBYSCORE', WAITERS, '-inf', whole(NOW))) do
    leave_queue(waiter)
  end
end

local function head_of_queue()
  return call('ZRANGE', QUEUE, 0, 0)[1]
end

-- Push, never publish: a push that comes before the BLPOP waits for it in the list.
local function wake_head()
  local head = head_of_queue()
  if not head then
    return
  end
  local come_until = NOW + COME_WITHIN_MS
  if come_until < tonumber(call('ZSCORE', WAITERS, head) or 0) then
    call('ZADD', WAITERS, whole(come_until), head)
  end
  call('PEXPIRE', NOTIFY .. head, WAKE_KEPT_MS)
  call('RPUSH', NOTIFY .. head, '1')
  call('PEXPIRE', NOTIFY .. head, WAKE_KEPT_MS)
end

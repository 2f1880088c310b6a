-- What every script of ours begins with: build.rs puts this text in front of each.
--
-- KEYS[1] lock:K      the holder's claim, or a foreign value     (string, PX = lease)
-- KEYS[2] queue:K     waiters in order of arrival                (zset: waiter -> number drawn)
-- KEYS[3] waiters:K   until when each waiter counts as alive     (zset: waiter -> server ms)
-- KEYS[4] info:K      who holds it                               (hash, PX = lease)
-- KEYS[5] fence:K     the last fencing token                     (string, PX = long)
-- KEYS[6] gone        set if this waiter has given up: a late request of it changes nothing
-- KEYS[7] node        this server's run_id and since when it has been seen (string, for ever)
-- ARGV[1] claim       '<waiter>.<attempt>'
-- ARGV[2] notify      prefix of the wake-up lists; the waiter's name follows
-- ARGV[3] nodes       how many servers the lock is spread over
--
-- Redis runs a script to its end before anything else, so each script is one atomic step. What it
-- is not is all-or-nothing: a command refused half-way (ACL, memory) leaves what came before. No key
-- of ours may stay for ever through that: see keep_for().

local LOCK, QUEUE, WAITERS, INFO, FENCE, GONE, NODE = unpack(KEYS)
local CLAIM, NOTIFY, NODES = ARGV[1], ARGV[2], ARGV[3]

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

-- The server's clock, never a client's; within a script it stands still.
local now
local function NOW()
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return now
end

-- Which server this is. With one alone nobody asks, and the question has its price.
local id
local function run_id()
  if NODES == '1' then
    return ''
  end
  id = id or string.match(call('INFO', 'server'), 'run_id:(%x+)')
  return id
end

-- A key that was just made: where PEXPIRE is refused, it must go again.
local function keep_for(key, ms)
  local reply = redis.pcall('PEXPIRE', key, ms)
  if type(reply) == 'table' and reply.err then
    redis.pcall('DEL', key)
    call('PEXPIRE', key, ms)
  end
end

local function leave_queue(waiter)
  call('ZREM', QUEUE, waiter)
  call('ZREM', WAITERS, waiter)
end

-- The first waiter that is alive; the dead before it lose their places. Without a lease is dead, too: or
-- the loss of that one key would leave a place that nobody can take.
local function head_of_queue()
  local head = call('ZRANGE', QUEUE, 0, 0)[1]
  while head do
    local alive_until = call('ZSCORE', WAITERS, head)
    if alive_until and tonumber(alive_until) > NOW() then
      return head
    end
    leave_queue(head)
    head = call('ZRANGE', QUEUE, 0, 0)[1]
  end
end

-- Push, never publish: a push that comes before the BLPOP waits for it in the list.
local function wake(waiter)
  local come_until = NOW() + COME_WITHIN_MS
  if come_until < tonumber(call('ZSCORE', WAITERS, waiter) or 0) then
    call('ZADD', WAITERS, whole(come_until), waiter)
  end
  call('RPUSH', NOTIFY .. waiter, '1')
  keep_for(NOTIFY .. waiter, WAKE_KEPT_MS)
end

-- How long this server must still not vote. It proves its memory by a mark that holds its run_id: no mark
-- (fresh, flushed, restarted empty) or another's (restarted, promoted, restored) makes the time start anew.
local function rest_ms(quarantine)
  if quarantine == 0 then
    return 0
  end
  local known, since = string.match(call('GET', NODE) or '', '^(%x+) (%d+)$')
  if known ~= run_id() then
    since = NOW()
    call('SET', NODE, run_id() .. ' ' .. whole(since))
  end
  return tonumber(since) + quarantine + 1000 - NOW()
end

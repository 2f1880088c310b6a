-- What every script of ours begins with: build.rs puts lib/common.lua, lib/holders.lua and lib/queue.lua in front
-- of each.
--
-- KEYS: for each key K of the user's six of ours, in the order given, then two for all of them:
--   lock:K      the holder's claim, a mark that it is shared, or a foreign value (string, PX = lease)
--   queue:K     those who wait, in order                   (zset: waiter and its wish -> number drawn)
--   waiters:K   until when each of them counts as alive    (zset: the same -> server ms)
--   info:K      who holds it (hash, PX = lease): field -> value, or of sharers: waiter -> JSON of the same
--   fence:K     the last fencing token                     (string, PX = long)
--   shared:K    until when each sharer holds it            (zset: claim, '/', slot -> server ms)
--   gone        set if this waiter has given up: a late request of it changes nothing
--   node        this server's run_id and since when it has been seen (string, for ever)
-- ARGV[1] claim     '<waiter>.<attempt>'
-- ARGV[2] notify    prefix of the wake-up lists; the waiter's name follows
-- ARGV[3] nodes     how many servers the lock is spread over
-- ARGV[4] want      '' = alone; 'shared:<group>'; 'slots:<n>': what stands at lock:K while it is shared
-- ARGV[5] flags     '!' = before all who wait without; '+' = not behind those who wait while it is shared;
--                   '&' = needs other keys as well
--
-- Redis runs a script to its end before anything else, so each script is one atomic step. What it
-- is not is all-or-nothing: a command refused half-way (ACL, memory) leaves what came before. No key
-- of ours may stay for ever through that: see take() and keep_for().

local CLAIM, NOTIFY, NODES, WANT, FLAGS = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local GONE, NODE = KEYS[#KEYS - 1], KEYS[#KEYS]
local LOCKS = {}
for i = 1, #KEYS - 2, 6 do
  local lock, queue, waiters, info, fence, shared = unpack(KEYS, i, i + 5)
  LOCKS[#LOCKS + 1] =
    { lock = lock, queue = queue, waiters = waiters, info = info, fence = fence, shared = shared }
end

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

-- Pass an error on that was caught. From Redis 7 on pcall() makes a plain text of it, which as such would be
-- answered as one without a code.
local function fail(why)
  error(redis.REDIS_VERSION_NUM and type(why) == 'string' and { err = why } or why, 0)
end

-- %.0f, as tostring() and .. would write large numbers as 1.7e+12.
local function whole(number)
  return string.format('%.0f', number)
end

-- A claim, or a sharer's entry, which has its slot behind it.
local function parse(claim)
  local waiter, attempt = string.match(claim, '^([%x-]+)%.(%d+)/?%d*$')
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

local id
local function server_id()
  id = id or string.match(call('INFO', 'server'), 'run_id:(%x+)')
  return id
end

-- Which server this is, for those who count votes. With one alone nobody does, and the question has its price.
local function run_id()
  return NODES == '1' and '' or server_id()
end

-- A key that was just made: where PEXPIRE is refused, it must go again.
local function keep_for(key, ms)
  local reply = redis.pcall('PEXPIRE', key, ms)
  if type(reply) == 'table' and reply.err then
    redis.pcall('DEL', key)
    call('PEXPIRE', key, ms)
  end
end

-- How long this server must still not vote. It proves its memory by a mark that holds its run_id: no mark
-- (fresh, flushed, restarted empty) or another's (restarted, promoted, restored) makes the time start anew.
local function rest_ms(quarantine)
  if quarantine == 0 then
    return 0
  end
  local known, since = string.match(call('GET', NODE) or '', '^(%x+) (%d+)$')
  if known ~= server_id() then
    since = NOW()
    call('SET', NODE, server_id() .. ' ' .. whole(since))
  end
  return tonumber(since) + quarantine + 1000 - NOW()
end

-- Numbers in a row, one for each key: '7 8' -> {7, 8}.
local function numbers(text)
  local list = {}
  for number in string.gmatch(text, '%d+') do
    list[#list + 1] = tonumber(number)
  end
  return list
end

-- From field, value, ... in ARGV.
local function fields(first)
  local about = {}
  for i = first, #ARGV, 2 do
    about[ARGV[i]] = ARGV[i + 1]
  end
  return about
end

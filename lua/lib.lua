-- What every script of ours begins with: build.rs puts this text in front of each.
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
-- of ours may stay for ever through that: see keep_for().

local CLAIM, NOTIFY, NODES, WANT, FLAGS = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local GONE, NODE = KEYS[#KEYS - 1], KEYS[#KEYS]
local LOCKS = {}
for i = 1, #KEYS - 2, 6 do
  local lock, queue, waiters, info, fence, shared = unpack(KEYS, i, i + 5)
  LOCKS[#LOCKS + 1] =
    { lock = lock, queue = queue, waiters = waiters, info = info, fence = fence, shared = shared }
end

-- A woken waiter that does not come for the lock within this time has lost its place.
local COME_WITHIN_MS = 2000
-- A wake-up nobody fetched is forgotten after this time.
local WAKE_KEPT_MS = 10000
-- As often as this each waiter asks anew.
local RENEWS_WITHIN_MS = 2100

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

-- A claim, or a sharer's entry: waiter, attempt, slot ('' = none).
local function parse(claim)
  local waiter, attempt, slot = string.match(claim, '^([%x-]+)%.(%d+)/?(%d*)$')
  return waiter, tonumber(attempt), slot
end

local ME, ATTEMPT = parse(CLAIM)
-- Our name in the queue tells the others what we wait for.
local QUEUED = WANT .. FLAGS == '' and ME or ME .. ' ' .. FLAGS .. WANT

local function parse_queued(queued)
  return string.match(queued, '^(%S+) ?([!+&]*)(.*)$')
end

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

-- How many holders a mark allows; nil if it is no mark.
local function permits(mark)
  if string.find(mark, 'shared:', 1, true) == 1 then
    return math.huge
  end
  return tonumber(string.match(mark, '^slots:(%d+)$'))
end

-- What a holder has told of itself; nil if it is foreign, or the record is gone.
local function record(k, waiter)
  local json = call('HGET', k.info, waiter)
  local ok, known = pcall(cjson.decode, json or '')
  if json then
    return ok and type(known) == 'table' and known or nil
  end
  local flat = call('HGETALL', k.info)
  known = {}
  for i = 1, #flat, 2 do
    known[flat[i]] = flat[i + 1]
  end
  return parse(known.claim or '') == waiter and known or nil
end

local function write_record(k, about)
  if WANT ~= '' then
    call('HSET', k.info, ME, cjson.encode(about))
    return
  end
  local flat = {}
  for field, value in pairs(about) do
    flat[#flat + 1] = field
    flat[#flat + 1] = value
  end
  call('HSET', k.info, unpack(flat))
end

local function is_live(k, entry)
  local until_ms = call('ZSCORE', k.shared, entry)
  return until_ms and tonumber(until_ms) > NOW()
end

-- If this waiter holds K now, through whatever attempt: the attempt, and what stands for it.
local function holding(k, waiter)
  local held = call('GET', k.lock)
  if not held then
    return
  end
  local holder, attempt = parse(held)
  if holder then
    if holder == waiter then
      return attempt, held
    end
  elseif permits(held) then
    local known = record(k, waiter)
    if known and known.claim and is_live(k, known.claim) then
      local _, shared_attempt = parse(known.claim)
      return shared_attempt, known.claim
    end
  end
end

-- After a change among the sharers: the mark lives as long as the last of them.
local function settle(k)
  for _, entry in ipairs(call('ZRANGEBYSCORE', k.shared, '-inf', whole(NOW()))) do
    call('HDEL', k.info, (parse(entry)))
    call('ZREM', k.shared, entry)
  end
  local last = call('ZRANGE', k.shared, -1, -1, 'WITHSCORES')[2]
  if not last then
    call('DEL', k.lock, k.shared, k.info)
    return
  end
  for _, key in ipairs({ k.lock, k.shared, k.info }) do
    if last == 'inf' then
      call('PERSIST', key)
    else
      call('PEXPIRE', key, whole(tonumber(last) - NOW()))
    end
  end
end

local function set_lock(k, value, ttl)
  if ttl == '0' then
    call('SET', k.lock, value)
  else
    call('SET', k.lock, value, 'PX', ttl)
  end
end

local function write_down(k, about, ttl, is_new)
  write_record(k, about)
  if WANT == '' then
    if ttl == '0' then
      call('PERSIST', k.info)
    else
      call('PEXPIRE', k.info, ttl)
    end
    set_lock(k, CLAIM, ttl)
    return
  end
  call('ZADD', k.shared, ttl == '0' and '+inf' or whole(NOW() + tonumber(ttl)), about.claim)
  if is_new then
    set_lock(k, WANT, ttl)
  end
  settle(k)
end

-- Make K ours: `about` us, for `ttl` ms ('0' = for ever). Whatever is refused half-way leaves nobody
-- locked out, and nothing behind.
local function take(k, about, ttl)
  local is_new = not call('GET', k.lock)
  if is_new and WANT ~= '' then
    call('DEL', k.shared, k.info) -- of sharers whose lock somebody has deleted
  end
  about.claim = WANT == '' and CLAIM or CLAIM .. '/' .. (about.slot or '')
  local ok, why = pcall(write_down, k, about, ttl, is_new)
  if not ok then
    redis.pcall('HDEL', k.info, ME)
    redis.pcall('ZREM', k.shared, about.claim)
    if is_new then
      redis.pcall('DEL', k.lock, k.shared, k.info)
    end
    error(why, 0)
  end
end

-- How many with this wish could enter K as it is now, if nobody waited.
local function room_for(k, want)
  local held = call('GET', k.lock)
  if not held then
    return permits(want) or 1
  end
  local allowed = held == want and permits(want)
  local holders = allowed and call('ZCOUNT', k.shared, '(' .. whole(NOW()), '+inf') or 0
  -- A mark without sharers is somebody else's, or has lost them: it must expire.
  return holders > 0 and allowed - holders or 0
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

-- Push, never publish: a push that comes before the BLPOP waits for it in the list. One is enough.
local function wake(k, queued)
  local come_until = NOW() + COME_WITHIN_MS
  if come_until < tonumber(call('ZSCORE', k.waiters, queued) or 0) then
    call('ZADD', k.waiters, whole(come_until), queued)
  end
  local list = NOTIFY .. parse_queued(queued)
  if call('EXISTS', list) == 0 then
    call('RPUSH', list, '1')
    keep_for(list, WAKE_KEPT_MS)
  end
end

-- Wake whoever may enter now: the first in the queue and, where the lock can be shared, its neighbours with
-- the same wish. `patient`: not those who wait for other keys as well, and who come by themselves.
local function wake_next(k, patient)
  local wish, room
  each_waiter(k, function(queued)
    local _, flags, want = parse_queued(queued)
    if not wish then
      wish, room = want, room_for(k, want)
    end
    if room <= 0 or want ~= wish then
      -- Soon, by itself, and perhaps sooner than it was told.
      local left = wish == want and call('PTTL', k.lock) or -1
      if not patient and room <= 0 and left >= 0 and left < RENEWS_WITHIN_MS then
        wake(k, queued)
      end
      return true
    end
    room = room - 1
    if not (patient and string.find(flags, '&', 1, true)) then
      wake(k, queued)
    end
  end)
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

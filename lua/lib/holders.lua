-- Who holds K: one alone (its claim at lock:K), several (a mark there, and an entry for each in shared:K), or
-- somebody who is not redlock (anything else at lock:K).

-- Of how many slots; nil if it is no such mark.
local function slots_of(mark)
  return tonumber(string.match(mark, '^slots:(%d+)$'))
end

-- How many holders a mark allows; nil if it is no mark.
local function permits(mark)
  if string.find(mark, 'shared:', 1, true) == 1 then
    return math.huge
  end
  return slots_of(mark)
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

-- What stands at the lock's key; false if it is free. Looked up once.
local function held(k)
  if k.held == nil then
    k.held = call('GET', k.lock)
  end
  return k.held
end

-- What stands for a sharer. Its record tells; if that is lost, and `surely` it should be there, all are looked through.
local function entry_of(k, waiter, surely)
  local known = record(k, waiter)
  if known and known.claim then
    return known.claim
  end
  for _, entry in ipairs(surely and call('ZRANGE', k.shared, 0, -1) or {}) do
    if parse(entry) == waiter then
      return entry
    end
  end
end

-- If this waiter holds K now, through whatever attempt: the attempt, and what stands for it.
local function holding(k, waiter, surely)
  local value = held(k)
  if not value then
    return
  end
  local holder, attempt = parse(value)
  if holder then
    if holder == waiter then
      return attempt, value
    end
  elseif permits(value) then
    local entry = entry_of(k, waiter, surely)
    if entry and is_live(k, entry) then
      local _, shared_attempt = parse(entry)
      return shared_attempt, entry
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
    k.held = false
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
  k.held = value
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
  local is_new = not held(k)
  if is_new then
    call('DEL', k.shared, k.info) -- of those whose lock somebody has deleted
  end
  about.claim = WANT == '' and CLAIM or CLAIM .. '/' .. (about.slot or '')
  local ok, why = pcall(write_down, k, about, ttl, is_new)
  if not ok then
    redis.pcall('HDEL', k.info, ME)
    redis.pcall('ZREM', k.shared, about.claim)
    if is_new then
      redis.pcall('DEL', k.lock, k.shared, k.info)
    end
    fail(why)
  end
end

-- How many with this wish could enter K as it is now, if nobody waited.
local function room_for(k, want)
  if not held(k) then
    return permits(want) or 1
  end
  local allowed = held(k) == want and permits(want)
  local holders = allowed and call('ZCOUNT', k.shared, '(' .. whole(NOW()), '+inf') or 0
  -- A mark without sharers is somebody else's, or has lost them: it must expire.
  return holders > 0 and allowed - holders or 0
end

-- The first sharer to go, and when.
local function first_to_go(k)
  local first = call('ZRANGEBYSCORE', k.shared, '(' .. whole(NOW()), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1], first[2]
end

-- When K may be free for this wish, if nobody renews it: in how many ms; -1 = never. One of those who share it is
-- enough for whoever would share it, too; whoever does not needs the last of them to be gone.
local function expires_in(k, want)
  local _, until_ms = first_to_go(k)
  if until_ms and until_ms ~= 'inf' and held(k) == want then
    return tonumber(until_ms) - NOW()
  end
  return call('PTTL', k.lock)
end

-- One of those who hold K: its name, how many others there are, and its record.
local function holder_of(k)
  if not permits(held(k)) then
    return held(k), 0, record(k, (parse(held(k)) or ''))
  end
  local first = first_to_go(k)
  local count = call('ZCOUNT', k.shared, '(' .. whole(NOW()), '+inf')
  return first or held(k), math.max(count - 1, 0), record(k, first and parse(first) or '')
end

-- Of whoever holds K: name ('' = nobody), ms until it expires (-1 = never), ms held (-1 = unknown), how many others,
-- then field, value, ... of its record.
local function description(k)
  local words = { '', '0', '-1', '0' }
  if held(k) then
    local holder, others, known = holder_of(k)
    local since = known and tonumber(known.since)
    words[1], words[2], words[4] = string.sub(holder, 1, 100), whole(expires_in(k, WANT)), whole(others)
    words[3] = since and whole(math.max(NOW() - since, 0)) or '-1'
    for field, value in pairs(known or {}) do
      words[#words + 1] = field
      words[#words + 1] = tostring(value)
    end
  end
  return words
end

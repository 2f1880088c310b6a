-- The waiters of K, in order.
-- @include server
-- @include constants
-- @include newest

-- Preferred waiters go ahead of all others: their scores are this much smaller.
local PREFERRED_LANE = 4e15

-- Our name in the queue shows other clients our flags and mode.
local QUEUED = MODE .. FLAGS == '' and ME or ME .. ' ' .. FLAGS .. MODE

local function parse_queued(queued)
  return string.match(queued, '^(%S+) ?(%p*)(.*)$')
end

-- Whether there may be any waiter. Looked up once.
local function has_queue(k)
  if k.has_queue == nil then
    k.has_queue = call('EXISTS', k.queue) == 1
  end
  return k.has_queue
end

-- The number of waiters, or of those with scores in this range.
local function count_waiters(k, from, to)
  return call('ZCOUNT', k.queue, from or '-inf', to or '+inf')
end

-- Waiters for a shared mode are in modes:K, too, sorted by mode, then by place in the queue, with
-- those that join in a range of their own. So the number of waiters of a mode ahead of a place is
-- known without a walk. All scores are 0; an entry is the text of the mode, the place and the name
-- in the queue.
local function mode_text(mode, joins)
  return (joins and JOINS or '') .. #mode .. ':' .. mode
end

local function place_text(score)
  return string.format('%016.0f', score)
end

-- The entry in modes:K of a waiter at this place; nil for an exclusive one.
local function mode_entry(queued, score)
  local _, flags, mode = parse_queued(queued)
  return mode ~= '' and mode_text(mode, has(flags, JOINS)) .. place_text(score) .. queued or nil
end

-- Removes waiters, given their names in the queue and their own names.
local function remove_by_name(k, list, names)
  call('ZREM', k.queue, unpack(list))
  call('ZREM', k.waiters, unpack(list))
  redis.pcall('HDEL', k.who, unpack(names)) -- for people only: a failure is ignored
end

local function remove_waiters(k, list)
  local entries, names = {}, {}
  for i, queued in ipairs(list) do
    names[i] = parse_queued(queued)
    local score = queued ~= names[i] and call('ZSCORE', k.queue, queued)
    entries[#entries + 1] = score and mode_entry(queued, score) or nil
  end
  remove_by_name(k, list, names)
  if #entries > 0 then
    call('ZREM', k.modes, unpack(entries))
  end
end

-- Leaves a queue that exists. ZSCORE comes first: a user without permission for ZREM that never
-- queued must not get an error.
local function leave_queue(k)
  local is_queued = k.is_first or call('ZSCORE', k.queue, QUEUED)
  if is_queued and MODE == '' then
    remove_by_name(k, { QUEUED }, { ME })
  elseif is_queued then
    remove_waiters(k, { QUEUED })
  end
  return is_queued
end

local function leave_if_queued(k)
  if has_queue(k) then
    leave_queue(k)
  end
end

-- Calls handle(list) with the waiters whose leases end in this range of ms, until none is left; at
-- most as many at a time as unpack() can take.
local function each_lease(k, from, to, handle)
  repeat
    local list = call('ZRANGEBYSCORE', k.waiters, from, to, 'LIMIT', 0, 1000)
    if #list > 0 then
      handle(list)
    end
  until #list < 1000
end

-- The name of the first waiter; nil or false if there is none.
local function first_waiter(k)
  return has_queue(k) and call('ZRANGE', k.queue, 0, 0)[1]
end

-- The time in ms until which a waiter counts as alive.
local function lease_of(k, queued)
  return tonumber(call('ZSCORE', k.waiters, queued) or 0)
end

-- A lease longer than possible was written before the clock was set back.
local function is_alive(lease)
  return lease > NOW_MS and lease <= NOW_MS + WAITER_LEASE_MS
end

-- Removes dead waiters, so that each is handled only once. Usually the number of leases shows that
-- there are none.
local function remove_dead_waiters(k)
  if k.has_living_only or not has_queue(k) then
    return
  end
  local now, longest = int_string(NOW_MS), int_string(NOW_MS + WAITER_LEASE_MS)
  local function are_all_alive()
    return call('ZCOUNT', k.waiters, '(' .. now, longest) == count_waiters(k)
  end
  k.has_living_only = true
  if are_all_alive() then
    return
  end
  k.has_lost_waiters = true
  -- A lease longer than possible was written before the clock was set back: it starts now.
  each_lease(k, '(' .. longest, '+inf', function(list)
    for _, queued in ipairs(list) do
      call('ZADD', k.waiters, longest, queued)
    end
  end)
  each_lease(k, '-inf', now, function(list)
    remove_waiters(k, list)
  end)
  if not are_all_alive() then
    -- A waiter without a lease is dead, too, or its place would never be freed.
    for _, key in ipairs({ k.queue, k.waiters }) do
      for _, queued in ipairs(call('ZRANGE', key, 0, -1)) do
        if not (call('ZSCORE', k.queue, queued) and call('ZSCORE', k.waiters, queued)) then
          remove_waiters(k, { queued })
        end
      end
    end
  end
end

local LANE = has(FLAGS, PREFERRED) and PREFERRED_LANE or 0

-- The largest stamp in the queue of K, in our lane; 0 if there is none.
local function last_stamp(k)
  if not has_queue(k) then
    return 0
  end
  local last = LANE > 0 and call('ZCOUNT', k.queue, '-inf', '(0') - 1 or -1
  local _, score = unpack(LANE > 0 and last < 0 and {} or call('ZRANGE', k.queue, last, last, 'WITHSCORES'))
  return score and tonumber(score) + LANE or 0
end

-- The arrival stamp of this request. It keeps the client's place when the client has to queue at
-- another server. A new one is larger than the stamps of all waiters that came here before.
local known_stamp = STAMP and FIRST_STAMP
local function our_stamp()
  if not known_stamp then
    known_stamp = FIRST_STAMP
    for _, k in ipairs(LOCKS) do
      -- Stamps of the same moment differ by 1.
      known_stamp = math.max(known_stamp, last_stamp(k) + 1, newest_stamp(k) + 1)
    end
  end
  return known_stamp
end

-- Our score in every queue of this server.
local function our_score()
  return our_stamp() - LANE
end

-- The number of waiters ahead of us. A client without a stamp comes after all others.
local function count_ahead(k)
  return call('ZRANK', k.queue, QUEUED) or count_waiters(k, '-inf', STAMP and int_string(our_score()))
end

-- The number of waiters for this mode ahead of a place; `before` is the text of the place and name.
local function count_of_mode(k, mode, before)
  local count = 0
  for _, joins in ipairs({ true, false }) do
    local text = mode_text(mode, joins)
    count = count + call('ZLEXCOUNT', k.modes, '[' .. text, '(' .. text .. before)
  end
  return count
end

-- Whether all waiters ahead of a place want this mode; `ahead` is their number. The first of them
-- is always checked: it is not overtaken whatever modes:K contains.
local function are_of_mode(k, mode, ahead, before)
  local _, _, first = parse_queued(call('ZRANGE', k.queue, 0, 0)[1])
  if first ~= mode then
    return false
  end
  local count = count_of_mode(k, mode, before)
  if count > ahead then
    -- A version of redlock that does not maintain modes:K has removed waiters. The others renew
    -- their entries.
    call('DEL', k.modes)
    return false
  end
  return count == ahead
end

local function are_of_our_mode(k, ahead)
  local score = call('ZSCORE', k.queue, QUEUED)
  if score then
    return are_of_mode(k, MODE, ahead, place_text(score) .. QUEUED)
  end
  -- '~' sorts after all names and places.
  return are_of_mode(k, MODE, ahead, (STAMP and place_text(our_score()) or '') .. '~')
end

-- Stores the client's fields, in ARGV from `first` on, for `redlock status`. They are for people
-- only: a failure is ignored.
local function describe_us(k, first, ttl)
  local who = {}
  for i = first, #ARGV, 2 do
    who[ARGV[i]] = ARGV[i + 1]
  end
  redis.pcall('HSET', k.who, ME, cjson.encode(who))
  redis.pcall('PEXPIRE', k.who, ttl)
end

-- Joins the queue, or renews our place in it. PEXPIRE comes first: if the user has no permission
-- for it, the queue, which other clients use, too, is not touched at all.
local function enqueue(k, first_field)
  local keys_live, new = WAITER_LEASE_MS + 1000, {}
  for _, key in ipairs({ k.queue, k.waiters, MODE ~= '' and k.modes or nil }) do
    if call('PEXPIRE', key, keys_live) == 0 then
      new[#new + 1] = key
    end
  end
  local score = call('ZSCORE', k.queue, QUEUED)
  local is_new = not score
  if is_new then
    score = int_string(our_score())
    call('ZADD', k.queue, score, QUEUED)
  end
  if is_new or call('PEXPIRE', k.who, keys_live) == 0 then
    describe_us(k, first_field, keys_live)
  end
  k.has_queue = true
  call('ZADD', k.waiters, int_string(NOW_MS + WAITER_LEASE_MS), QUEUED)
  if MODE ~= '' then
    call('ZADD', k.modes, 0, mode_entry(QUEUED, tonumber(score)))
  end
  for _, key in ipairs(new) do
    call('PEXPIRE', key, keys_live)
  end
end

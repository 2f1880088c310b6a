-- The entries in shared:K, one for each holder of a mode that several may hold.
-- @include server
-- @include info

-- For ZCOUNT and ZRANGEBYSCORE: entries that have not expired.
local function live_range()
  return '(' .. int_string(now_ms()), '+inf'
end

local function is_live(k, entry)
  local until_ms = call('ZSCORE', k.shared, entry)
  return until_ms and tonumber(until_ms) > now_ms()
end

local function count_live(k)
  return call('ZCOUNT', k.shared, live_range())
end

-- The sharer whose entry expires first, and when.
local function first_to_expire(k)
  local after, to = live_range()
  local first = call('ZRANGEBYSCORE', k.shared, after, to, 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1], first[2]
end

-- The entry of a sharer. Its info names it; if the info is lost, all entries are searched, but only if asked to.
local function entry_of(k, waiter, must_search)
  local info = read_info(k, waiter)
  if info and info.claim then
    return info.claim
  end
  for _, entry in ipairs(must_search and call('ZRANGE', k.shared, 0, -1) or {}) do
    if parse_claim(entry) == waiter then
      return entry
    end
  end
end

-- The lowest slot that is free.
local function free_slot(k)
  if k.is_untouched then
    return '0'
  end
  local taken = {}
  for _, entry in ipairs(call('ZRANGEBYSCORE', k.shared, live_range())) do
    taken[string.match(entry, '%d*$')] = true
  end
  local slot = 0
  while taken[int_string(slot)] do
    slot = slot + 1
  end
  return int_string(slot)
end

-- After a change among the sharers: expired entries are removed, and the keys live as long as the last entry.
local function prune_and_expire(k)
  for _, entry in ipairs(call('ZRANGEBYSCORE', k.shared, '-inf', int_string(now_ms()))) do
    call('HDEL', k.info, (parse_claim(entry)))
    call('ZREM', k.shared, entry)
  end
  local last = call('ZRANGE', k.shared, -1, -1, 'WITHSCORES')[2]
  if not last then
    call('DEL', k.lock, k.shared, k.info)
    k.value = false
    return
  end
  for _, key in ipairs({ k.lock, k.shared, k.info }) do
    if last == 'inf' then
      call('PERSIST', key)
    else
      call('PEXPIRE', key, int_string(tonumber(last) - now_ms()))
    end
  end
end

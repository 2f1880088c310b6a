-- Changes to the entries in shared:K. Not in sharers.lua, because exclusive locks have no entries.
-- @include expired
-- @include grant
-- @include sharers

local function with_slot(map, slot, char)
  map = map .. string.rep('.', slot - #map)
  return string.sub(map, 1, slot) .. char .. string.sub(map, slot + 2)
end

-- The number of slots taken, and the slot map; false instead of a map that cannot be trusted: the
-- field was lost, or a version of redlock that does not maintain it has changed the entries.
local function read_slots(k)
  local taken, map = string.match(call('HGET', k.info, SLOTS) or '0 ', '^(%d+) (.*)$')
  local entries = call('ZCOUNT', k.shared, '-inf', '+inf')
  return entries, tonumber(taken) == entries and map
end

local function write_slots(k, taken, map)
  call('HSET', k.info, SLOTS, int_string(taken) .. ' ' .. map)
end

local function slot_of(entry)
  return tonumber(string.match(entry, '/(%d+)')) or 0
end

-- Another waiter's live entry with this slot, if there is one. The map usually tells that there is
-- none.
local function holder_of_slot(k, slot)
  local _, map = read_slots(k)
  if map and string.sub(map, slot + 1, slot + 1) ~= '#' then
    return
  end
  local after, to = live_range()
  for _, entry in ipairs(call('ZRANGEBYSCORE', k.shared, after, to)) do
    if slot_of(entry) == slot and parse_claim(entry) ~= ME then
      return entry
    end
  end
end

-- The lowest slot that is free, from this one on, or else of all.
local function free_slot(map, lowest)
  local slot = (string.find(map, '.', lowest + 1, true) or math.max(#map, lowest) + 1) - 1
  return slot < slots_of(MODE) and slot or (string.find(map, '.', 1, true) or #map + 1) - 1
end

-- Takes this slot, or one that is free, for an entry that will be added. Expired entries must have
-- been removed.
local function take_slot(k, wanted)
  local lowest = k.lowest_slot or 0
  if k.is_clean then
    wanted = wanted or free_slot('', lowest)
    write_slots(k, 1, with_slot('', wanted, '#'))
    return int_string(wanted)
  end
  local taken, map = read_slots(k)
  if not map then
    map = ''
    for _, entry in ipairs(call('ZRANGE', k.shared, 0, -1)) do
      map = with_slot(map, slot_of(entry), '#')
    end
  end
  local slot = wanted or free_slot(map, lowest)
  write_slots(k, taken + 1, with_slot(map, slot, '#'))
  return int_string(slot)
end

-- Removes these entries, their records and their slots. take_slot() rebuilds a map that is unknown.
local function remove_entries(k, entries)
  local waiters, has_slots, taken, map = {}, slots_of(current(k))
  if has_slots then
    taken, map = read_slots(k)
  end
  for i, entry in ipairs(entries) do
    waiters[i] = parse_claim(entry)
    map = map and with_slot(map, slot_of(entry), '.')
  end
  call('ZREM', k.shared, unpack(entries))
  if map then
    write_slots(k, taken - #entries, map)
  end
  call('HDEL', k.info, has_slots and not map and SLOTS or waiters[1], unpack(waiters))
end

-- Removes expired entries, so that each is handled only once; at most as many at a time as unpack()
-- can take.
local function remove_expired(k)
  repeat
    local with_scores = call('ZRANGEBYSCORE', k.shared, '-inf', int_string(NOW_MS), 'WITHSCORES', 'LIMIT', 0, 1000)
    local expired = {}
    for i = 1, #with_scores, 2 do
      expired[#expired + 1] = with_scores[i]
    end
    if #expired > 0 then
      pcall(log_expired_entries, k, with_scores)
      remove_entries(k, expired)
    end
  until #expired < 1000
end

-- Called after a change among the sharers: makes the lock expire with its last entry.
local function expire_with_last_entry(k)
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
      local left = int_string(tonumber(last) - NOW_MS)
      call('PEXPIRE', key, key == k.lock and left or record_ttl(k, left))
    end
  end
end

local function remove_entry(k, entry)
  remove_entries(k, { entry })
  remove_expired(k)
  expire_with_last_entry(k)
end

-- Renews the entry for `ttl` ms from now; '0' = forever.
local function renew_entry(k, entry, ttl)
  call('ZADD', k.shared, ttl == '0' and '+inf' or int_string(NOW_MS + tonumber(ttl)), entry)
  remove_expired(k)
  expire_with_last_entry(k)
end

-- For store_grant(). Expired entries are removed before our record is written, because one of them
-- may be ours. `k.slot`: the slot that is wanted, if any.
local function write_share(k, info, ttl, first_field, is_new)
  -- A request that is repeated keeps its slot, unless other servers have refused that.
  local has_kept = k.entry and slot_of(k.entry) >= (k.lowest_slot or 0)
  k.slot = k.slot or has_kept and slot_of(k.entry)
  if k.entry then
    remove_entries(k, { k.entry })
  end
  if not is_new then
    remove_expired(k)
  end
  if slots_of(MODE) then
    info.slot = take_slot(k, k.slot)
  end
  info.claim = CLAIM .. '/' .. (info.slot or '')
  info.mode = MODE
  write_record(k, info, first_field)
  call('ZADD', k.shared, ttl == '0' and '+inf' or int_string(NOW_MS + tonumber(ttl)), info.claim)
  if not is_new then
    expire_with_last_entry(k)
    return
  end
  set_lock(k, MODE, ttl)
  if ttl ~= '0' then
    call('PEXPIRE', k.shared, record_ttl(k, ttl))
    call('PEXPIRE', k.info, record_ttl(k, ttl))
  end
end

local function undo_share(k, info)
  redis.pcall('HDEL', k.info, ME, SLOTS)
  redis.pcall('ZREM', k.shared, info.claim)
end

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

-- How many entries there are, expired ones included.
local function count_entries(k)
  return call('ZCOUNT', k.shared, '-inf', '+inf')
end

-- Whether an entry has no record. A waiter without a record may still have an entry then.
local function has_lost_records(k)
  local others = slots_of(current(k)) and 1 or 0
  return call('HLEN', k.info) - others < count_entries(k)
end

-- The entry of a sharer. Its info names it; if records were lost, all entries are searched, but only if asked to.
local function entry_of(k, waiter, must_search)
  local info = read_info(k, waiter)
  if info and info.claim then
    return info.claim
  end
  for _, entry in ipairs(must_search and has_lost_records(k) and call('ZRANGE', k.shared, 0, -1) or {}) do
    if parse_claim(entry) == waiter then
      return entry
    end
  end
end

-- Field of info:K: '<n> <signs>', how many slots are taken, and a sign for each slot from 0 on, '#' if it is taken.
local SLOTS = 'slots'

local function with_slot(signs, slot, sign)
  signs = signs .. string.rep('.', slot - #signs)
  return string.sub(signs, 1, slot) .. sign .. string.sub(signs, slot + 2)
end

-- How many slots are taken, and the signs; no signs if they are not known: the field was lost, or a version of redlock
-- that does not keep it has changed the entries.
local function read_slots(k)
  local taken, signs = string.match(call('HGET', k.info, SLOTS) or '0 ', '^(%d+) (.*)$')
  local entries = count_entries(k)
  return entries, tonumber(taken) == entries and signs
end

local function write_slots(k, taken, signs)
  call('HSET', k.info, SLOTS, int_string(taken) .. ' ' .. signs)
end

local function slot_of(entry)
  return tonumber(string.match(entry, '%d*$')) or 0
end

-- Takes the lowest slot that is free for an entry that will be added. Expired entries must have been removed.
local function take_slot(k)
  if k.is_untouched then
    write_slots(k, 1, '#')
    return '0'
  end
  local taken, signs = read_slots(k)
  if not signs then
    signs = ''
    for _, entry in ipairs(call('ZRANGE', k.shared, 0, -1)) do
      signs = with_slot(signs, slot_of(entry), '#')
    end
  end
  local slot = (string.find(signs, '.', 1, true) or #signs + 1) - 1
  write_slots(k, taken + 1, with_slot(signs, slot, '#'))
  return int_string(slot)
end

-- Removes these entries, their records and their slots. Signs that are not known are made anew by take_slot().
local function remove_entries(k, entries)
  local waiters, has_slots, taken, signs = {}, slots_of(current(k))
  if has_slots then
    taken, signs = read_slots(k)
  end
  for i, entry in ipairs(entries) do
    waiters[i] = parse_claim(entry)
    signs = signs and with_slot(signs, slot_of(entry), '.')
  end
  call('ZREM', k.shared, unpack(entries))
  if signs then
    write_slots(k, taken - #entries, signs)
  end
  call('HDEL', k.info, has_slots and not signs and SLOTS or waiters[1], unpack(waiters))
end

-- Each entry costs something once. No more at a time than unpack() can take.
local function remove_expired(k)
  repeat
    local expired = call('ZRANGEBYSCORE', k.shared, '-inf', int_string(now_ms()), 'LIMIT', 0, 1000)
    if #expired > 0 then
      remove_entries(k, expired)
    end
  until #expired < 1000
end

-- After a change among the sharers: the keys live as long as the last entry.
local function live_as_the_last_entry(k)
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

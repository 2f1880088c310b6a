-- The entries in shared:K, one for each holder of a shared mode. share.lua changes them.
-- @include server
-- @include info

-- The scores of entries that have not expired, for ZCOUNT and ZRANGEBYSCORE.
local function live_range()
  return '(' .. int_string(NOW_MS), '+inf'
end

local function is_live(k, entry)
  local until_ms = call('ZSCORE', k.shared, entry)
  return until_ms and tonumber(until_ms) > NOW_MS
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

-- The entry of a sharer, which its record names. If there are fewer records than entries, some were
-- lost: then all entries are searched, but only on request.
local function entry_of(k, waiter, must_search)
  local info = read_info(k, waiter)
  if info and info.claim then
    return info.claim
  end
  local others = slots_of(current(k)) and 1 or 0 -- for the field SLOTS
  if must_search and call('HLEN', k.info) - others < call('ZCOUNT', k.shared, '-inf', '+inf') then
    for _, entry in ipairs(call('ZRANGE', k.shared, 0, -1)) do
      if parse_claim(entry) == waiter then
        return entry
      end
    end
  end
end

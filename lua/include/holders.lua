-- The holders of K, their leases, and the capacity that is left.
-- @include server
-- @include info
-- @include sharers

-- If this waiter holds K now, through any attempt: that attempt, and its claim or entry.
local function claim_of(k, waiter, must_search)
  local value = current(k)
  if not value then
    return
  end
  local holder, attempt = parse_claim(value)
  if holder then
    if holder == waiter then
      return attempt, value
    end
  elseif max_holders(value) then
    local entry = entry_of(k, waiter, must_search)
    if entry and is_live(k, entry) then
      local _, shared_attempt = parse_claim(entry)
      return shared_attempt, entry
    end
  end
end

-- The number of requests of this mode that K could admit now if there were no queue.
local function free_capacity(k, mode)
  if mode == '' then
    return current(k) and 0 or 1
  elseif not current(k) then
    return max_holders(mode) or 1
  elseif current(k) == mode then
    local sharers = count_live(k)
    -- A tag without sharers is foreign, or its sharers were lost: it must expire.
    return sharers > 0 and (max_holders(mode) or 0) - sharers or 0
  end
  return 0
end

-- The ms after which K may be free for this mode if no holder renews; -1 = never. A request that
-- shares the current mode needs one sharer to leave; any other needs the last one to leave.
local function expires_in(k, mode)
  if mode ~= '' and current(k) == mode then
    local _, until_ms = first_to_expire(k)
    if until_ms and until_ms ~= 'inf' then
      return tonumber(until_ms) - NOW_MS
    end
  end
  return call('PTTL', k.lock)
end

-- The name of one holder of K, and its record. Looked up once.
local function holder_of(k)
  if not k.holder then
    local sharer = max_holders(current(k)) and first_to_expire(k)
    k.holder = sharer or current(k)
    k.holder_info = read_info(k, parse_claim(k.holder))
  end
  return k.holder, k.holder_info
end

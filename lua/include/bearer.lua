-- A client that has nothing but a grant's token. The rest is found in what the grant has left in info:K.
-- @include holders
-- @include wakeup

-- The ms for which the lock is to stay taken because of a minimum hold.
local function min_hold_left(info)
  local since, min_hold = tonumber(info.since), tonumber(info.min_hold)
  return since and min_hold and math.max(since + min_hold - NOW_MS, 0) or 0
end

-- A reply if the grant is spread over another number of servers than the client asks; or has another number of locks than it
-- names, since a token stands for all of them. A run gives all its locks back, whichever is named.
local function refusal()
  for _, k in ipairs(LOCKS) do
    local info = claim_of(k, ME, true) == ATTEMPT and read_info(k, ME)
    if info and info.nodes and info.nodes ~= SERVERS then
      return { 'different_server_count', info.nodes }
    end
    if info and info.keeper and (tonumber(info.locks) or 1) ~= #LOCKS then
      return { 'different_lock_count', info.locks or '1' }
    end
  end
end

-- Whether a run holds one of the locks, whose command has to be stopped before the lock is anybody else's.
local function is_held_by_run()
  for _, k in ipairs(LOCKS) do
    local info = claim_of(k, ME, true) == ATTEMPT and read_info(k, ME)
    if info and not info.keeper and not info.ended then
      return true
    end
  end
end

-- Whether a process holds the lock, which is to hear of what is done to it.
local function has_process(info)
  return info.keeper ~= 'none'
end

-- What the holder reads when it wakes.
local function tell_holder(what)
  local list = NOTIFY .. ME
  call('RPUSH', list, CLAIM .. ' ' .. what)
  expire_or_delete(list, WAKEUP_TTL_MS)
end

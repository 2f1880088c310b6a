-- A client that has only a grant's token. Everything else is in the record that the grant left in
-- info:K.
-- @include holders
-- @include protocol
-- @include wakeup

-- The ms for which a minimum hold still keeps the lock.
local function min_hold_left(info)
  local since, min_hold = tonumber(info.since), tonumber(info.min_hold)
  return since and min_hold and math.max(since + min_hold - NOW_MS, 0) or 0
end

-- Returns a reply if the holder's protocol conflicts with ours, or if the grant covers another number
-- of servers than the client uses, or another number of locks than it names: a token covers all of
-- them. A run is exempt from the last rule, because it releases all its locks whichever is named; and
-- what is left of a grant of which some locks have ended can be named alone.
local function refusal(is_incomplete)
  for _, k in ipairs(LOCKS) do
    local info = claim_of(k, ME, true) == ATTEMPT and read_info(k, ME)
    local conflict = other_protocol(info)
    if conflict then
      return conflict
    end
    if info and info.nodes and info.nodes ~= SERVERS then
      return { 'different_server_count', info.nodes }
    end
    if info and info.keeper and (tonumber(info.locks) or 1) ~= #LOCKS and not is_incomplete then
      return { 'different_lock_count', info.locks or '1' }
    end
  end
end

-- Whether a run holds one of the locks. Its command must be stopped before the lock is freed.
local function is_held_by_run()
  for _, k in ipairs(LOCKS) do
    local info = claim_of(k, ME, true) == ATTEMPT and read_info(k, ME)
    if info and not info.keeper and not info.ended then
      return true
    end
  end
end

-- Whether a process holds the lock, and must be notified of changes.
local function has_process(info)
  return info.keeper ~= 'none'
end

-- Pushes a message that the holder reads when it wakes.
local function notify_holder(message)
  local list = NOTIFY .. ME
  call('RPUSH', list, CLAIM .. ' ' .. message)
  expire_or_delete(list, WAKEUP_TTL_MS)
end

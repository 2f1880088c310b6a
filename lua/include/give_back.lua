-- Giving back what is not plain: a lock that several hold, that is kept for a minimum hold, that was broken or lost, or of
-- which only the token is known. Most often it is plain, so the branches of release.lua include what they need of this.
--
-- It knows what release.lua defines: MIN_HOLD, HISTORY and HOW.
-- @include holders

-- The functions for what is seldom there are created only where it is.
local function breaker_of(k)
  -- @include mark
  return tostring(broken_by(k, ME).notify)
end

local function tell(breaker)
  -- @include wakeup
  pcall(push_wakeup, breaker)
end

local function change_share(k, entry, min_hold)
  -- @include share
  if min_hold == '0' then
    remove_entry(k, entry)
  else
    renew_entry(k, entry, min_hold)
  end
end

local function keep_for_min_hold(k, entry, min_hold)
  call('PEXPIRE', k.lock, min_hold)
  if is_shared(k) then
    change_share(k, entry, min_hold)
  else
    call('PEXPIRE', k.info, min_hold)
  end
  set_info_field(k, read_info(k, ME), 'ended', '1')
end

local function delete_grant(k, entry)
  if is_shared(k) then
    change_share(k, entry, '0')
  else
    call('DEL', k.lock, k.info)
    k.value = false
  end
end

-- The next client would take us for a holder that ended without a word.
local function forget_record(k)
  local record = call('HGET', k.info, MODE == '' and 'claim' or ME)
  local info = MODE ~= '' and decode_info(record)
  if info then
    call('ZREM', k.shared, info.claim)
    call('HDEL', k.info, ME)
  end
  if info and call('EXISTS', k.shared) == 0 or MODE == '' and parse_claim(record or '') == ME then
    call('DEL', k.info)
  end
end

-- Before a bearer gives a grant back: what its record tells.
local function note_grant(k, entry)
  -- @include bearer
  -- @include log
  local info = read_info(k, ME) or {}
  log_for_holder(k, entry, info, HOW, NOW_MS, ARGV[17])
  k.history, k.has_process = info.history, has_process(info)
  return int_string(min_hold_left(info)), info.ended
end

-- 'released', or else 'expired' or 'foreign'.
local function give_back(k)
  k.history = HISTORY
  local min_hold = MIN_HOLD
  -- Ours, through this attempt or an earlier one whose reply was lost?
  local attempt, entry = claim_of(k, ME, true)
  local is_ours = attempt and (IS_BEARER and attempt == ATTEMPT or not IS_BEARER and attempt <= ATTEMPT)
  local has_ended
  if is_ours and IS_BEARER then
    min_hold, has_ended = note_grant(k, entry)
  end
  if not is_ours or has_ended then
    k.is_lost = true
    if HOW and not IS_BEARER and not current(k) then
      pcall(forget_record, k)
    end
    return free_capacity(k, MODE) <= 0 and 'foreign' or 'expired'
  elseif string.sub(entry, -1) == '!' then
    -- Broken (mark.lua): no minimum hold keeps it. The breaking client is told after a write that frees memory.
    local breaker = breaker_of(k)
    delete_grant(k, entry)
    tell(breaker)
  elseif min_hold == '0' then
    delete_grant(k, entry)
  else
    keep_for_min_hold(k, entry, min_hold)
  end
  return 'released'
end

-- Whatever is not given back yet. Returns the reply, and the first error: if a command is refused for one key, the other
-- keys must still be freed.
local function give_back_rest()
  local reply, first_error = 'released', nil
  for _, k in ipairs(LOCKS) do
    local ok, answer = true, 'released'
    if not k.is_given_back then
      ok, answer = pcall(give_back, k)
    end
    if not ok then
      first_error = first_error or answer
    elseif answer ~= 'released' and reply ~= 'foreign' then
      reply = answer
    end
  end
  return reply, first_error
end

-- For a bearer that comes later, and for a process that holds the lock.
local function leave_word()
  -- @include bearer
  -- @include trace
  local who = {}
  for i = 18, #ARGV, 2 do
    who[ARGV[i]] = ARGV[i + 1]
  end
  leave_trace(TOMBSTONE, HOW, who)
  for _, k in ipairs(LOCKS) do
    if k.has_process then
      return tell_holder(HOW .. ' ' .. cjson.encode(who))
    end
  end
end

-- The holder gives back what was broken.
local function tell_bearers()
  -- @include trace
  local ok, by = pcall(cjson.decode, ARGV[17])
  leave_trace(TOMBSTONE, HOW, ok and type(by) == 'table' and by or {})
end

local function how_it_ended()
  -- @include trace
  return trace_reply()
end

-- Those that have only the token, now or later. Returns a reply to one that was not the first to give the grant back.
local function tell_others(reply)
  if not IS_BEARER then
    tell_bearers()
  elseif reply == 'released' then
    leave_word()
  else
    return how_it_ended()
  end
end

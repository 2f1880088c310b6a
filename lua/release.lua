-- Give back whatever this waiter has, locks or places in queues, and wake the next waiters.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] tombstone   ms to keep the tombstone; 0 = none. For a client with a request still under way somewhere, which
--                     must be refused when it arrives
-- ARGV[8] min_hold    ms that the locks stay taken, until they expire by themselves; 0 = none
-- ARGV[9] history     how many finished runs log:K keeps; 0 = none. If nothing is to be written down, the rest is missing
-- ARGV[10] fences     the grant's tokens; '' = there was no grant
-- ARGV[11] slots      of the grant; '' = none
-- ARGV[12] how        the run ended
-- ARGV[13] exit       its code; '' = not known
-- ARGV[14] signal     that it died of; '' = none
-- ARGV[15] waited     ms
-- ARGV[16] held       ms; '' = it never had the locks
-- ARGV[17] by         who broke or superseded it, JSON; '' = nobody
-- ARGV[18...]         field, value, ... about the client
--
-- Returns 'released', or if one was not ours: 'expired' (free now) or 'foreign' (not free), or {'ended', how, field, value,
-- ...}: it was given back by its token before ('released') or 'broken', by the client that is described. To a bearer,
-- which does not know the grant, also {'different_server_count', n}, {'different_lock_count', n}, or {'run'}: nothing was done, since a run holds the
-- lock and has to be told (break.lua); min_hold is then that of the grant, and the history
-- tells what the grant's record does.
--
-- Atomic, so that what is deleted is what was compared, and so that the next waiter is woken exactly when the lock
-- is free.
--
-- Most often the lock is ours, exclusively, and nobody waits. That is done first, before the functions for everything else
-- are created.
--
-- @include value
-- @include queue
-- @include log
-- @include bearer

local TOMBSTONE_TTL, MIN_HOLD, HISTORY, HOW = ARGV[7], ARGV[8], ARGV[9], ARGV[12]

-- If a command is refused for one key, the other keys must still be freed.
local first_error
local function attempt_all(release_one)
  for _, k in ipairs(LOCKS) do
    local ok, why = pcall(release_one, k)
    first_error = first_error or (not ok and why)
  end
end

local function delete_exclusive(k)
  call('DEL', k.lock, k.info)
  k.value = false
end

-- The claim itself stands at lock:K if it is an exclusive one and is not marked. Then it is ours, through this attempt.
local function give_back_plain(k)
  if current(k) == CLAIM and MIN_HOLD == '0' then
    k.is_given_back = true
    delete_exclusive(k)
  end
  return has_queue(k)
end

-- What the client takes for a proper end is none if the lock was gone. The fields are always the same, in the same order:
-- a stream stores their names once.
local function write_history()
  local fences, slots = string.gmatch(ARGV[10], '%d+'), string.gmatch(ARGV[11], '%d+')
  for _, k in ipairs(LOCKS) do
    local how, fence, slot = HOW == 'released' and k.is_lost and 'lost' or HOW, fences(), slots()
    -- The client that freed it at once has written it down, if there was a log: break.lua.
    if HOW ~= 'broken' or not k.is_lost or call('EXISTS', k.log) == 0 then
      append_to_log(k, HISTORY, 'claim', CLAIM, 'how', how, 'exit', ARGV[13], 'signal', ARGV[14], 'waited', ARGV[15],
        'held', ARGV[16], 'fence', fence or '', 'mode', MODE, 'slot', slot or '', 'by', ARGV[17], unpack(ARGV, 18))
    end
  end
end

local function finish(reply)
  -- Not before a write that frees memory, or a server that is out of memory would refuse the release.
  if TOMBSTONE_TTL ~= '0' then
    call('SET', TOMBSTONE, '1', 'PX', TOMBSTONE_TTL)
  end
  if HOW and not IS_BEARER then
    write_history()
  end
  if first_error then
    fail(first_error)
  end
  return reply
end

local function refuse()
  -- @include bearer
  return refusal() or is_held_by_run() and { 'run' }
end

local refused = IS_BEARER and refuse()
if refused then
  return refused
end
local is_plain = not IS_BEARER
if is_plain then
  attempt_all(give_back_plain)
end
for _, k in ipairs(LOCKS) do
  is_plain = is_plain and k.is_given_back and k.has_queue == false
end
if is_plain then
  return finish('released')
end

-- Everything else.
--
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

local function leave(k)
  -- @include queue
  leave_queue(k)
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
    delete_exclusive(k)
  end
end

local reply = 'released'

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
  log_for_holder(k, entry, info, HOW, now_ms(), ARGV[17])
  k.history, k.has_process = info.history, has_process(info)
  return int_string(min_hold_left(info)), info.ended
end

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
    reply = (free_capacity(k, MODE) <= 0 or reply == 'foreign') and 'foreign' or 'expired'
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
end

local function leave_or_give_back(k)
  if not k.is_given_back then
    give_back(k)
  end
  if has_queue(k) then
    leave(k)
  end
end

local function wake_waiters()
  -- @include turn
  attempt_all(wake_next)
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

attempt_all(leave_or_give_back)
-- Unknown is not "none".
local may_have_waiters
for _, k in ipairs(LOCKS) do
  may_have_waiters = may_have_waiters or k.has_queue ~= false
end
if may_have_waiters then
  wake_waiters()
end
if IS_BEARER then
  if reply == 'released' then
    leave_word()
  else
    reply = how_it_ended() or reply
  end
elseif HOW == 'broken' then
  tell_bearers()
end
return finish(reply)

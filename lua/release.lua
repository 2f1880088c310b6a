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
-- which does not know the grant, also {'different_server_count', n}, {'different_lock_count', n}, or {'run'}: nothing was
-- done, since a run holds the lock and has to be told (break.lua); min_hold is then that of the grant, and the history tells
-- what the grant's record does.
--
-- Atomic, so that what is deleted is what was compared, and so that the next waiter is woken exactly when the lock
-- is free.
--
-- Redis creates the functions of a script at each call, when it reaches them. Most often the locks are ours, exclusively,
-- and nobody waits. So everything else is in a function of its own, release_rest().
--
-- @include log

local TOMBSTONE_TTL, MIN_HOLD, HISTORY, HOW = ARGV[7], ARGV[8], ARGV[9], ARGV[12]
-- The MODE of a client that has only the token: see include/bearer.lua.
local IS_BEARER = MODE == '?'

-- The claim itself stands at lock:K if it is an exclusive one and is not marked. Then it is ours, through this attempt. What
-- is refused here is tried again below.
local is_plain, is_all_released = true, true
for _, k in ipairs(LOCKS) do
  if not IS_BEARER and MIN_HOLD == '0' and try('GET', k.lock) == CLAIM then
    k.is_released = type(try('DEL', k.lock, k.info)) == 'number'
  end
  if k.is_released then
    local queues = try('EXISTS', k.queue)
    k.value, k.has_queue = false, queues == 1
    if type(queues) ~= 'number' then
      k.has_queue = nil -- not known
    end
  end
  is_all_released = is_all_released and k.is_released
  is_plain = is_plain and k.is_released and k.has_queue == false
end

local result, failure = 'released', nil
if not is_plain then
  -- Returns the reply, the first error, and whether nothing was done.
  local function release_rest()
    -- @include queue
    -- @include turn

    -- If a command is refused for one key, the other keys must still be freed. Returns the first error.
    local function wake_waiters()
      local first_error
      for _, step in ipairs({ leave_if_queued, wake_next }) do
        for _, k in ipairs(LOCKS) do
          local ok, why = pcall(step, k)
          first_error = first_error or not ok and why
        end
      end
      return first_error
    end

    if is_all_released and HOW ~= 'broken' then
      return 'released', wake_waiters()
    end

    -- The rest: a lock that several hold, that is kept for a minimum hold, that was broken or lost, or of which only the token
    -- is known.
    -- @include bearer
    -- @include expired
    -- @include mark
    -- @include share
    -- @include trace

    local function keep_for_min_hold(k, entry, min_hold)
      call('PEXPIRE', k.lock, min_hold)
      if is_shared(k) then
        renew_entry(k, entry, min_hold)
      else
        call('PEXPIRE', k.info, min_hold)
      end
      set_info_field(k, read_info(k, ME), 'ended', '1')
    end

    local function delete_grant(k, entry)
      if is_shared(k) then
        remove_entry(k, entry)
      else
        call('DEL', k.lock, k.info)
        k.value = false
      end
    end

    -- The next client would take us for a holder that ended without a word.
    local function forget_record(k)
      local info = read_info(k, ME)
      if info then
        call('ZREM', k.shared, info.claim)
        call('HDEL', k.info, ME)
      end
      if call('EXISTS', k.shared) == 0 then
        call('DEL', k.info)
      end
    end

    -- Before a bearer gives a grant back: what its record tells.
    local function note_grant(k, entry)
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
      elseif is_marked(entry) then
        -- Broken (mark.lua): no minimum hold keeps it. The breaking client is told after a write that frees memory.
        local breaker = tostring(broken_by(k, ME).notify)
        delete_grant(k, entry)
        pcall(push_wakeup, breaker)
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
        if not k.is_released then
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
      local ok, by = pcall(cjson.decode, ARGV[17])
      leave_trace(TOMBSTONE, HOW, ok and type(by) == 'table' and by or {})
    end

    -- Those that have only the token, now or later. Returns a reply to one that was not the first to give the grant back.
    local function tell_others(reply)
      if not IS_BEARER then
        tell_bearers()
      elseif reply == 'released' then
        leave_word()
      else
        return trace_reply()
      end
    end

    local refused = IS_BEARER and (refusal() or is_held_by_run() and { 'run' })
    if refused then
      return refused, nil, true
    end
    local reply, release_error = give_back_rest()
    local wake_error = wake_waiters()
    if IS_BEARER or HOW == 'broken' then
      reply = tell_others(reply) or reply
    end
    return reply, release_error or wake_error
  end
  local is_refused
  result, failure, is_refused = release_rest()
  if is_refused then
    return result
  end
end

-- Not before a write that frees memory, or a server that is out of memory would refuse the release.
if TOMBSTONE_TTL ~= '0' then
  call('SET', TOMBSTONE, '1', 'PX', TOMBSTONE_TTL)
end
-- What the client takes for a proper end is none if the lock was gone. The fields are always the same, in the same order:
-- a stream stores their names once.
if HOW and not IS_BEARER then
  local fences, slots = string.gmatch(ARGV[10], '%d+'), string.gmatch(ARGV[11], '%d+')
  for _, k in ipairs(LOCKS) do
    local how, fence, slot = HOW == 'released' and k.is_lost and 'lost' or HOW, fences(), slots()
    -- The client that freed it at once has written it down, if there was a log: break.lua. A dead client may have
    -- released it, and written that down, just before its guardian does.
    if not k.is_lost or HOW ~= 'killed' and (HOW ~= 'broken' or call('EXISTS', k.log) == 0) then
      append_to_log(k, HISTORY, 'claim', CLAIM, 'how', how, 'exit', ARGV[13], 'signal', ARGV[14], 'waited', ARGV[15],
        'held', ARGV[16], 'fence', fence or '', 'mode', MODE, 'slot', slot or '', 'by', ARGV[17], unpack(ARGV, 18))
    end
  end
end
if failure then
  fail(failure)
end
return result

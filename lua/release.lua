-- Release everything that this waiter has, locks or places in queues, and wake the next waiters.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] tombstone   ms to keep the tombstone; 0 = none. For a client whose request may still be
--                     on its way to a server, and must be refused on arrival. A bearer leaves it
--                     only where it finds nothing
-- ARGV[8] min_hold    ms for which the locks stay held, until they expire; 0 = none
-- ARGV[9] done        the mark of a run with --once that has succeeded: the ms for which it is kept,
--                     and the client as JSON; '' = leave none. See include/done.lua
-- ARGV[10] history     number of finished runs that log:K keeps; 0 = none. The arguments below are
--                     absent if there is nothing to log
-- ARGV[11] fences     the grant's tokens; '' = there was no grant
-- ARGV[12] slots      the grant's slots; '' = none
-- ARGV[13] how        how the run ended
-- ARGV[14] exit       its exit code; '' = unknown
-- ARGV[15] signal     the signal that killed it; '' = none
-- ARGV[16] waited     ms
-- ARGV[17] held       ms; '' = it never had the locks
-- ARGV[18] by         the client that broke or superseded it, JSON; '' = none
-- ARGV[19...]         field, value, ... of the client
--
-- Returns 'released', or if one of the locks was not ours, 'expired' (free now) or 'foreign' (not
-- free). A bearer, which does not know the grant, gets these in a list, or
--   {'ended', how, field, value, ...}: 'released' by its token before, or 'broken'; the fields
--      describe the client that did it
-- and as the last string for each lock whether it was ours and is released: '1 0'; or
--   {'different_server_count', n}, {'different_lock_count', n} or
--      {'other_protocol', protocol, version}
--   {'run'}: nothing was done, because a run holds the lock and must be notified first (break.lua).
-- A bearer sends '' for what it does not know. Its minimum hold and its entry in the log come from
-- the grant's record.
--
-- Atomic, so that only a claim that was compared is deleted, and so that the next waiter is woken
-- exactly when the lock is free.
--
-- Redis creates the functions of a script at each call, when it reaches them. In most calls the
-- locks are ours, exclusively, and there are no waiters. The code for all other cases is in
-- release_rest().
--
-- @include log

local TOMBSTONE_TTL, MIN_HOLD, DONE, HISTORY, HOW = ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[13]
-- The MODE of a client that has only the token: see include/bearer.lua.
local IS_BEARER = MODE == '?'

-- The plain case: lock:K has exactly our claim, so it is exclusive, not marked, and from this
-- attempt. Whatever is refused here is retried below.
local is_plain, is_all_released = true, true
for _, k in ipairs(LOCKS) do
  if not IS_BEARER and MIN_HOLD == '0' and try('GET', k.lock) == CLAIM then
    k.is_released = type(try('DEL', k.lock, k.info)) == 'number'
  end
  if k.is_released then
    local queues = try('EXISTS', k.queue)
    k.value, k.has_queue = false, queues == 1
    if type(queues) ~= 'number' then
      k.has_queue = nil -- unknown
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

    -- If a command is refused for one key, the other keys are still freed. Returns the first error.
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

    -- The remaining cases: a lock that is shared, kept for a minimum hold, broken or lost, or of
    -- which only the token is known.
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

    -- Otherwise the next client would log us as a holder whose lease expired.
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

    -- Called before a bearer releases a grant: logs the run, as its record describes it. Returns
    -- the ms left of its minimum hold, and whether it had ended before.
    local function log_grant(k, entry)
      local info = read_info(k, ME) or {}
      log_for_holder(k, entry, info, HOW, NOW_MS, ARGV[18])
      k.history, k.has_process = info.history, has_process(info)
      return int_string(min_hold_left(info)), info.ended
    end

    -- Returns 'released', 'expired' or 'foreign'.
    local function release_lock(k)
      k.history = HISTORY
      local min_hold = MIN_HOLD
      -- Ours, through this attempt or an earlier one whose reply was lost?
      local attempt, entry = claim_of(k, ME, true)
      local is_ours = attempt and (IS_BEARER and attempt == ATTEMPT or not IS_BEARER and attempt <= ATTEMPT)
      local has_ended
      if is_ours and IS_BEARER then
        min_hold, has_ended = log_grant(k, entry)
      end
      if not is_ours or has_ended then
        k.is_lost = true
        if HOW and not IS_BEARER and not current(k) then
          pcall(forget_record, k)
        end
        return free_capacity(k, MODE) <= 0 and 'foreign' or 'expired'
      elseif is_marked(entry) then
        -- Broken (mark.lua): no minimum hold keeps it. The breaking client is notified only after a
        -- write that frees memory.
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

    -- Releases all locks that are still held. Returns the reply and the first error: if a command
    -- is refused for one key, the other keys are still freed.
    local function release_held()
      local reply, first_error = 'released', nil
      for _, k in ipairs(LOCKS) do
        local ok, outcome = true, 'released'
        if not k.is_released then
          ok, outcome = pcall(release_lock, k)
        end
        if not ok then
          first_error = first_error or outcome
        elseif outcome ~= 'released' and reply ~= 'foreign' then
          reply = outcome
        end
      end
      return reply, first_error
    end

    -- Notifies a bearer that comes later, and the process that holds the lock.
    local function notify_of_release()
      local who = {}
      for i = 19, #ARGV, 2 do
        who[ARGV[i]] = ARGV[i + 1]
      end
      leave_trace(TOMBSTONE, HOW, who)
      for _, k in ipairs(LOCKS) do
        if k.has_process then
          return notify_holder(HOW .. ' ' .. cjson.encode(who))
        end
      end
    end

    -- Notifies bearers: the holder itself releases a lock that was broken.
    local function leave_trace_of_break()
      local ok, by = pcall(cjson.decode, ARGV[18])
      leave_trace(TOMBSTONE, HOW, ok and type(by) == 'table' and by or {})
    end

    -- Nothing of the grant was here, or not all of it. A renewal by another client may be on its way
    -- to restore it: see heal.lua. A failure is ignored, as are the memory and the permission that it
    -- would need.
    local function refuse_healing()
      for _, k in ipairs(LOCKS) do
        if claim_of(k, ME, true) then
          return
        end
      end
      redis.pcall('SET', TOMBSTONE, '1', 'PX', TOMBSTONE_TTL, 'NX')
    end

    -- The reply to a bearer that was not the first to release the grant, or not all of it.
    local function lost_reply(reply)
      local fields, are_released = trace_reply() or { reply }, {}
      for i, k in ipairs(LOCKS) do
        are_released[i] = k.is_lost and '0' or '1'
      end
      fields[#fields + 1] = table.concat(are_released, ' ')
      return fields
    end

    -- Notifies the clients that have only the token, now or later. Returns the reply to one of them.
    local function notify_others(reply)
      if not IS_BEARER then
        leave_trace_of_break()
      elseif reply == 'released' then
        notify_of_release()
      else
        refuse_healing()
        return lost_reply(reply)
      end
    end

    local refused = IS_BEARER and (refusal(trace_reply()) or is_held_by_run() and { 'run' })
    if refused then
      return refused, nil, true
    end
    local reply, release_error = release_held()
    local wake_error = wake_waiters()
    if IS_BEARER or HOW == 'broken' then
      reply = notify_others(reply) or reply
    end
    return reply, release_error or wake_error
  end
  local is_refused
  result, failure, is_refused = release_rest()
  if is_refused then
    return result
  end
end

-- This comes after a write that frees memory, or a server that is out of memory would refuse the
-- release.
if TOMBSTONE_TTL ~= '0' and not IS_BEARER then
  call('SET', TOMBSTONE, '1', 'PX', TOMBSTONE_TTL)
end
-- Where the lock was lost, another run may have started, and may still fail.
if DONE ~= '' then
  local kept_for, who = string.match(DONE, '^(%d+) (.*)$')
  local now = redis.call('TIME')
  for _, k in ipairs(LOCKS) do
    if not k.is_lost then
      call('SET', k.done, now[1] .. string.sub('00000' .. now[2], -6, -4) .. ' ' .. who, 'PX', kept_for)
    end
  end
end
-- A run that ended properly from the client's view is logged as 'lost' if the lock was gone. The
-- fields are always the same, in the same order: a stream stores their names once.
if HOW and not IS_BEARER then
  local fences, slots = string.gmatch(ARGV[11], '%d+'), string.gmatch(ARGV[12], '%d+')
  for _, k in ipairs(LOCKS) do
    local how, fence, slot = HOW == 'released' and k.is_lost and 'lost' or HOW, fences(), slots()
    -- A client that freed the lock at once has logged that, if there was a log: break.lua. A dead
    -- client may have released and logged the run just before its guardian does.
    if not k.is_lost or HOW ~= 'killed' and (HOW ~= 'broken' or call('EXISTS', k.log) == 0) then
      append_to_log(k, HISTORY, 'claim', CLAIM, 'how', how, 'exit', ARGV[14], 'signal', ARGV[15], 'waited', ARGV[16],
        'held', ARGV[17], 'fence', fence or '', 'mode', MODE, 'slot', slot or '', 'by', ARGV[18], unpack(ARGV, 19))
    end
  end
end
if failure then
  fail(failure)
end
return result

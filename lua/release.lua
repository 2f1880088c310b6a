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
-- Most often the lock is ours, exclusively, and nobody waits. So the functions for everything else are in
-- include/give_back.lua and others, and are created only in the branches that need them.
--
-- @include bearer
-- @include log

local TOMBSTONE_TTL, MIN_HOLD, HISTORY, HOW = ARGV[7], ARGV[8], ARGV[9], ARGV[12]

if IS_BEARER then
  -- @include bearer
  local refused = refusal() or is_held_by_run() and { 'run' }
  if refused then
    return refused
  end
end

-- The claim itself stands at lock:K if it is an exclusive one and is not marked. Then it is ours, through this attempt. What
-- is refused here is tried again below.
local is_plain, reply, first_error = true, 'released', nil
for _, k in ipairs(LOCKS) do
  if not IS_BEARER and MIN_HOLD == '0' and try('GET', k.lock) == CLAIM then
    k.is_given_back = type(try('DEL', k.lock, k.info)) == 'number'
  end
  if k.is_given_back then
    local queues = try('EXISTS', k.queue)
    k.value, k.has_queue = false, queues == 1
    if type(queues) ~= 'number' then
      k.has_queue = nil -- not known
    end
  end
  is_plain = is_plain and k.is_given_back and k.has_queue == false
end
-- If a command is refused for one key, the other keys must still be freed.
for _, k in ipairs(LOCKS) do
  if not k.is_given_back then
    -- @include give_back
    reply, first_error = give_back_rest()
    break
  end
end
if not is_plain then
  -- @include turn
  -- @include queue
  for _, step in ipairs({ leave_if_queued, wake_next }) do
    for _, k in ipairs(LOCKS) do
      local ok, why = pcall(step, k)
      first_error = first_error or (not ok and why)
    end
  end
end
if IS_BEARER or HOW == 'broken' and not is_plain then
  -- @include give_back
  reply = tell_others(reply) or reply
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
    -- The client that freed it at once has written it down, if there was a log: break.lua.
    if HOW ~= 'broken' or not k.is_lost or call('EXISTS', k.log) == 0 then
      append_to_log(k, HISTORY, 'claim', CLAIM, 'how', how, 'exit', ARGV[13], 'signal', ARGV[14], 'waited', ARGV[15],
        'held', ARGV[16], 'fence', fence or '', 'mode', MODE, 'slot', slot or '', 'by', ARGV[17], unpack(ARGV, 18))
    end
  end
end
if first_error then
  fail(first_error)
end
return reply

-- Give back whatever this waiter has, locks or places in queues, and wake the next waiters.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] tombstone   ms to keep the tombstone; 0 = none. For a client with a request still under way somewhere, which
--                     must be refused when it arrives
-- ARGV[8] min_hold    ms that the locks stay taken, until they expire by themselves; 0 = none
--
-- Returns 'released', or if one was not ours: 'expired' (free now) or 'foreign' (not free).
--
-- Atomic, so that what is deleted is what was compared, and so that the next waiter is woken exactly when the lock
-- is free.
--
-- @include holders
-- @include queue

local TOMBSTONE_TTL, MIN_HOLD = ARGV[7], ARGV[8]

-- The functions for what is seldom there are created only where it is.
local function leave(k)
  -- @include queue
  leave_queue(k)
end

local function change_share(k, entry)
  -- @include share
  if MIN_HOLD == '0' then
    remove_entry(k, entry)
  else
    renew_entry(k, entry, MIN_HOLD)
  end
end

local function keep_for_min_hold(k, entry)
  call('PEXPIRE', k.lock, MIN_HOLD)
  if MODE == '' then
    call('PEXPIRE', k.info, MIN_HOLD)
  else
    change_share(k, entry)
  end
  set_info_field(k, read_info(k, ME), 'ended', '1')
end

local function delete_grant(k, entry)
  if MODE == '' then
    call('DEL', k.lock, k.info)
    k.value = false
  else
    change_share(k, entry)
  end
end

local reply = 'released'

local function give_back(k)
  -- Ours, through this attempt or an earlier one whose reply was lost?
  local attempt, entry = claim_of(k, ME, true)
  if not attempt or attempt > ATTEMPT then
    reply = (free_capacity(k, MODE) <= 0 or reply == 'foreign') and 'foreign' or 'expired'
  elseif MIN_HOLD == '0' then
    delete_grant(k, entry)
  else
    keep_for_min_hold(k, entry)
  end
  if has_queue(k) then
    leave(k)
  end
end

-- If a command is refused for one key, the other keys must still be freed.
local first_error, may_have_waiters
local function attempt_all(release_one)
  for _, k in ipairs(LOCKS) do
    local ok, why = pcall(release_one, k)
    first_error = first_error or (not ok and why)
    may_have_waiters = may_have_waiters or k.has_queue ~= false
  end
end

-- Most often there is no queue.
local function wake_waiters()
  -- @include turn
  attempt_all(wake_next)
end

attempt_all(give_back)
-- Not before a write that frees memory, or a server that is out of memory would refuse the release.
if TOMBSTONE_TTL ~= '0' then
  call('SET', TOMBSTONE, '1', 'PX', TOMBSTONE_TTL)
end
if may_have_waiters then
  wake_waiters()
end
if first_error then
  fail(first_error)
end
return reply

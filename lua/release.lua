-- Give back whatever this waiter has, locks or places in queues, and wake the next ones.
--
-- KEYS, ARGV[1..5]  as in lib/common.lua
-- ARGV[6] mark        ms to keep the mark "has given up", 0 = none: for a client with a request still
--                     under way somewhere, which must find the door closed when it arrives
-- ARGV[7] stay        ms that the locks stay taken, by themselves; 0 = none
--
-- Returns 'released', or of one that was not ours: 'expired' (nobody else is in the way) or 'foreign' (somebody is).
--
-- Atomic, so that what is deleted is what was compared, and so that the next one is told exactly
-- when the lock is free.

local STAY = ARGV[7]

local function leave_taken(k, entry)
  call('PEXPIRE', k.lock, STAY)
  if WANT == '' then
    call('PEXPIRE', k.info, STAY)
  else
    call('ZADD', k.shared, whole(NOW() + tonumber(STAY)), entry)
    settle(k)
  end
  local known = record(k, ME)
  if known then
    known.ended = '1'
    write_record(k, known)
  end
end

local function let_go(k, entry)
  if WANT == '' then
    call('DEL', k.lock, k.info)
    k.held = false
  else
    call('ZREM', k.shared, entry)
    call('HDEL', k.info, ME)
    settle(k)
  end
end

local answer = 'released'

local function give_back(k)
  -- Ours, through this attempt or an earlier one whose answer was lost?
  local attempt, entry = holding(k, ME, true)
  if not attempt or attempt > ATTEMPT then
    answer = (room_for(k, WANT) <= 0 or answer == 'foreign') and 'foreign' or 'expired'
  elseif STAY == '0' then
    let_go(k, entry)
  else
    leave_taken(k, entry)
  end
  leave_queue(k, QUEUED)
end

-- One key of which something is refused must not keep the others taken.
local first_error
for _, k in ipairs(LOCKS) do
  local ok, why = pcall(give_back, k)
  first_error = first_error or (not ok and why)
end
-- Not before a write that frees memory, or a server that is out of it would refuse the release.
if ARGV[6] ~= '0' then
  call('SET', GONE, '1', 'PX', ARGV[6])
end
for _, k in ipairs(LOCKS) do
  local ok, why = pcall(wake_next, k)
  first_error = first_error or (not ok and why)
end
if first_error then
  fail(first_error)
end
return answer

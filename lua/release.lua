-- Give back whatever this waiter has, locks or places in queues, and wake the next ones.
--
-- KEYS, ARGV[1..5]  as in lib.lua
-- ARGV[6] mark        ms to keep the mark "has given up", 0 = none: for a client with a request still
--                     under way somewhere, which must find the door closed when it arrives
-- ARGV[7] min hold    ms that the locks stay taken after they were granted, by themselves
--
-- Returns 'released', or of one that was not ours: 'expired' (nobody else is in the way) or 'foreign' (somebody is).
--
-- Atomic, so that what is deleted is what was compared, and so that the next one is told exactly
-- when the lock is free.

local MIN_HOLD = tonumber(ARGV[7])

local function leave_taken(k, ms)
  call('PEXPIRE', k.lock, whole(ms))
  if WANT == '' then
    call('PEXPIRE', k.info, whole(ms))
  else
    call('ZADD', k.shared, whole(NOW() + ms), k.entry)
    settle(k)
  end
  local known = record(k, ME)
  known.ended = '1'
  write_record(k, known)
end

local function let_go(k)
  if WANT == '' then
    call('DEL', k.lock, k.info)
  else
    call('ZREM', k.shared, k.entry)
    call('HDEL', k.info, ME)
    settle(k)
  end
end

-- Nothing is kept of which nobody knows since when.
local function to_keep(k)
  local known = MIN_HOLD > 0 and record(k, ME)
  return known and known.since and tonumber(known.since) + MIN_HOLD - NOW() or 0
end

local answer = 'released'
for _, k in ipairs(LOCKS) do
  -- Ours, through this attempt or an earlier one whose answer was lost?
  local attempt, entry = holding(k, ME)
  k.entry = entry
  if attempt and attempt <= ATTEMPT then
    local left = to_keep(k)
    if left > 0 then
      leave_taken(k, left)
    else
      let_go(k)
    end
  else
    answer = (room_for(k, WANT) <= 0 or answer == 'foreign') and 'foreign' or 'expired'
  end
  leave_queue(k, QUEUED)
end
-- Not before a write that frees memory, or a server that is out of it would refuse the release.
if ARGV[6] ~= '0' then
  call('SET', GONE, '1', 'PX', ARGV[6])
end
for _, k in ipairs(LOCKS) do
  wake_next(k)
end
return answer

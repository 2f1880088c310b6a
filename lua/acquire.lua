-- Take all locks if each is free for us and it is our turn; otherwise none, but a place in each queue.
--
-- KEYS, ARGV[1..5]  as in lib/common.lua
-- ARGV[6]  ttl         of the locks, ms; 0 = for ever
-- ARGV[7]  lease       of the places in the queues, ms; 0 = do not queue
-- ARGV[8]  keep        how long the fencing tokens are remembered, ms
-- ARGV[9]  proposed    the gate's tokens, for a vote; '' = this is the gate
-- ARGV[10] quarantine  how long a server that lost its memory does not vote, ms; 0 = off
-- ARGV[11] ancestors   waiters that the client runs under
-- ARGV[12...]          field, value, ... for info:K
--
-- Returns {'granted', run_id, tokens, slots}
--      or {'blocked', which key (from 0), place (0 = next, -1 = not queued), who holds it, as in lib/holders.lua}
--      or {'quarantined', ms}: this server may have forgotten what it granted, and does not vote yet
--      or {'nested'}: an ancestor is in the way
--      or {'stale'}: a newer request of this waiter was here first, or it has given up
--      or {'duplicate_server'}: this very request was granted here already: the server is listed twice
--      or {'replica'}, {'different_server_count', n}: held as a lock over n servers, {'slots_mismatch', n}: held with n slots (0 = without).
--
-- Atomic, so that "free", "our turn" and "taken" are one moment for all keys: nobody can come in between, and
-- whoever waits for several stands in all their queues in the same order, so that no two wait for each other.

local TTL, LEASE, KEEP, PROPOSED, QUARANTINE = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9], tonumber(ARGV[10])
local IS_GATE, TOKENS = PROPOSED == '', numbers(PROPOSED)
-- Numbers below zero are for those who go before all others.
local FIRST_LANE = -2 ^ 52

-- At the gate never smaller than the server's clock, so that tokens go on growing after the counter was
-- lost; elsewhere never smaller than the gate's.
local function next_fence(k, i)
  return math.max(tonumber(call('GET', k.fence) or 0) + 1, TOKENS[i] or NOW())
end

local function free_slot(k)
  local taken = {}
  for _, entry in ipairs(call('ZRANGEBYSCORE', k.shared, '(' .. whole(NOW()), '+inf')) do
    taken[string.match(entry, '%d*$')] = true
  end
  local slot = 0
  while taken[whole(slot)] do
    slot = slot + 1
  end
  return whole(slot)
end

-- A SET comes first: a server that is out of memory refuses only a script whose first write takes memory.
-- If an earlier request of ours won, and only its answer was lost, this one takes its place. With a new
-- token: nobody has seen the old one, and others may have had larger ones meanwhile.
local function grant(k, i)
  local about = fields(12)
  about.fence = whole(next_fence(k, i))
  call('SET', k.fence, about.fence, 'PX', KEEP)
  leave_queue(k, QUEUED)
  if k.entry and WANT ~= '' then
    call('ZREM', k.shared, k.entry)
  end
  if slots_of(WANT) then
    about.slot = free_slot(k)
  end
  about.since, about.nodes = whole(NOW()), NODES
  local is_first_sharer = WANT ~= '' and not held(k)
  take(k, about, TTL)
  return about.fence, about.slot, is_first_sharer
end

local function grant_all()
  local fences, slots = {}, {}
  for i, k in ipairs(LOCKS) do
    local fence, slot, is_first_sharer = grant(k, i)
    fences[i], slots[i] = fence, slot
    if IS_GATE then
      if WANT ~= '' then
        wake_next(k)
      end
      -- Those who are not behind anybody while it is shared.
      for _, queued in ipairs(is_first_sharer and call('ZRANGE', k.queue, 0, -1) or {}) do
        local _, flags, want = parse_queued(queued)
        if want == WANT and string.find(flags, '+', 1, true) then
          wake(k, queued)
        end
      end
    end
  end
  return { 'granted', run_id(), table.concat(fences, ' '), table.concat(slots, ' ') }
end

-- Whether nobody waits who must come before us.
local function is_our_turn(k, room)
  if string.find(FLAGS, '+', 1, true) and held(k) == WANT then
    return true
  end
  local is_ours = true
  local side_by_side = SIDE_BY_SIDE
  each_waiter(k, function(queued)
    if queued == QUEUED then
      return true
    end
    local _, flags, want = parse_queued(queued)
    room = room - 1
    side_by_side = side_by_side - (needs_others(flags) and 0 or 1)
    is_ours = want == WANT and room > 0 and side_by_side > 0
    return not is_ours
  end)
  return is_ours
end

-- Of those in whose lane we queue.
local function last_number(k)
  if not string.find(FLAGS, '!', 1, true) then
    return math.max(tonumber(call('ZRANGE', k.queue, -1, -1, 'WITHSCORES')[2] or 0), 0)
  end
  local in_lane = call('ZCOUNT', k.queue, '-inf', '(0')
  return in_lane > 0 and tonumber(call('ZRANGE', k.queue, in_lane - 1, in_lane - 1, 'WITHSCORES')[2]) or FIRST_LANE
end

-- PEXPIRE is asked for first as well: where it is not permitted the queue, which is not ours alone,
-- is not touched at all.
local function enqueue(k)
  local keys_live = LEASE + 1000
  call('PEXPIRE', k.queue, keys_live)
  call('PEXPIRE', k.waiters, keys_live)
  if not call('ZSCORE', k.queue, QUEUED) then
    call('ZADD', k.queue, whole(last_number(k) + 1), QUEUED)
  end
  call('ZADD', k.waiters, whole(NOW() + LEASE), QUEUED)
  call('PEXPIRE', k.queue, keys_live)
  call('PEXPIRE', k.waiters, keys_live)
end

local function busy(k, key)
  local place = call('ZRANK', k.queue, QUEUED)
  local reply = { 'blocked', whole(key - 1), place and whole(place) or '-1' }
  for _, word in ipairs(description(k)) do
    reply[#reply + 1] = word
  end
  return reply
end

-- Users of a key who do not agree on what it is.
local function mismatch(k)
  local _, _, known = holder_of(k)
  if known and known.nodes ~= NODES then
    return { 'different_server_count', known.nodes }
  end
  local is_ours = parse(held(k)) or permits(held(k))
  if held(k) ~= WANT and is_ours and (slots_of(held(k)) or slots_of(WANT)) then
    return { 'slots_mismatch', whole(slots_of(held(k)) or 0) }
  end
end

-- Not one whose command has ended: what is left of it goes away by itself.
local function is_below_ancestor(k)
  for ancestor in string.gmatch(ARGV[11], '%S+') do
    local known = record(k, ancestor)
    if holding(k, ancestor) and not (known and known.ended) then
      return true
    end
  end
end

-- A waiter has one place in all queues, or it might be first in one and last in another, and wait for ever for
-- somebody who waits for it. Whoever has lost a place begins anew in all.
local function keep_order()
  for _, k in ipairs(LOCKS) do
    if not call('ZSCORE', k.queue, QUEUED) then
      for _, other in ipairs(LOCKS) do
        leave_queue(other, QUEUED)
      end
      return
    end
  end
end

if not string.find(call('INFO', 'replication'), 'role:master', 1, true) then
  return { 'replica' }
end
if call('EXISTS', GONE) == 1 then
  return { 'stale' }
end
local rest = rest_ms(QUARANTINE)
local taken, not_yet
for i, k in ipairs(LOCKS) do
  local attempt
  attempt, k.entry = holding(k, ME)
  if attempt == ATTEMPT and NODES ~= '1' then
    return { 'duplicate_server' }
  end
  if attempt and attempt > ATTEMPT then
    return { 'stale' }
  end
  if not attempt then
    local refused = held(k) and mismatch(k)
    if refused then
      return refused
    end
    local room = room_for(k, WANT)
    if room <= 0 then
      taken = taken or i
    end
    -- Who is next was decided at the gate.
    if IS_GATE and (room <= 0 or not is_our_turn(k, room)) then
      not_yet = not_yet or i
      if is_below_ancestor(k) then
        return { 'nested' }
      end
    end
  end
end
if rest > 0 and not taken then
  return { 'quarantined', whole(rest) } -- also if it remembers us: it may be an old copy
end
if not taken and not not_yet then
  return grant_all()
end
if LEASE > 0 and #LOCKS > 1 then
  keep_order()
end
for _, k in ipairs(LOCKS) do
  if LEASE > 0 then
    enqueue(k)
  end
  if IS_GATE then
    wake_next(k, true) -- the holder expired, or the one who was first died: nobody else would tell the next
  end
end
local in_the_way = taken or not_yet
return busy(LOCKS[in_the_way], in_the_way)

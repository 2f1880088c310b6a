-- Take all locks if each is free for us and it is our turn; otherwise take none, but join each queue.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7]  ttl         of the locks, ms; 0 = they never expire
-- ARGV[8]  role        'gate'; 'vote' = the client has the gate's vote; 'newcomer' = it has asked the gate at the same
--                      time; 'again' = a vote that was asked for before with the same attempt; 'ahead' = a vote that
--                      is followed by BLPOP and 'again' on the same connection
-- ARGV[9]  queues      '1' = join the queues if blocked; '0' = do not
-- ARGV[10] gate        run_id of the client's gate, for a vote
-- ARGV[11] proposed    tokens: the gate's, for a vote; the client's guess, for a newcomer; '' = none
-- ARGV[12] quarantine  how long a server that lost its data does not vote, ms; 0 = off
-- ARGV[13] ancestors   waiters that the client runs under
-- ARGV[14...]          field, value, ... for info:K
--
-- Returns {'granted', run_id, tokens, slots, stamp, ms that this server has been known, longest quarantine in ms}
--      or {'blocked', key, position, holder...}: see include/blocked.lua
--      or {'quarantined', ms, longest quarantine in ms}: this server may have forgotten what it granted, and does not
--         vote yet
--      or {'nested'}: an ancestor is in the way
--      or {'kept'}: nothing changes, since the vote that 'again' is for was granted meanwhile
--      or {'superseded', key, field, value, ...}: a newer request, which is described, has taken our place
--      or {'stale'}: a newer request of this waiter was here first, or the waiter has given up
--      or {'duplicate_server'}: this very request was granted here already, so the server is listed twice
--      or {'replica'}
--      or {'different_server_count', n}: held as a lock over n servers
--      or {'slots_mismatch', n}: held with n slots (0 = without slots).
--
-- Atomic, so that "free", "our turn" and "taken" are one moment for all keys, and so that waiters for several keys join
-- all their queues in the same order and cannot wait for each other.
--
-- @include grant
-- @include fence
-- @include queue
-- @include untouched

local TTL, ROLE, QUEUES, GATE, PROPOSED = ARGV[7], ARGV[8], ARGV[9] == '1', ARGV[10], ARGV[11]
local QUARANTINE, ANCESTORS = tonumber(ARGV[12]), ARGV[13]
local FIRST_FIELD = 14
local IS_GATE = ROLE == 'gate'
local PROPOSED_FENCES = PROPOSED == '' and {} or numbers(PROPOSED)

-- A client's guess may be this far ahead of the server's clock: after a loss of all counters the clock alone keeps
-- tokens growing, and a quarantine lasts longer than this.
local GUESS_AHEAD_MS = 1000

-- No token is below this. At the gate none is below the server's clock, so that tokens keep growing after the counter
-- was lost; a vote is never below the gate's token.
local function lowest_fence(i)
  local proposed = PROPOSED_FENCES[i] or 0
  if (IS_GATE or ROLE == 'newcomer') and proposed > now_ms() + GUESS_AHEAD_MS then
    proposed = 0
  end
  return math.max(proposed, IS_GATE and now_ms() or 0)
end

-- The functions for what is seldom there are created only where it is.
local function leave(k)
  -- @include queue
  return leave_queue(k)
end

local function store_share(k, info)
  -- @include share
  store_grant(k, info, TTL, FIRST_FIELD, write_share)
end

-- SET comes first: a server that is out of memory refuses a script only if its first write takes memory.
-- If an earlier request of ours was granted and its reply was lost, this one replaces it. With a new token: the old one
-- was never used, and other clients may have had larger ones meanwhile.
local function grant(k, i)
  local info = { fence = int_string(next_fence(k, lowest_fence(i))), since = int_string(now_ms()) }
  info.gate, info.stamp = IS_GATE and run_id() or GATE, int_string(our_stamp())
  set_fence(k, info.fence)
  k.was_queued = has_queue(k) and leave(k)
  k.was_free = not current(k)
  if MODE == '' then
    store_grant(k, info, TTL, FIRST_FIELD, write_exclusive)
  else
    store_share(k, info)
  end
  return info.fence, info.slot
end

local known_for, longest_quarantine

-- We are blocked until a client releases the lock, and not for a shorter time.
local waits_for_release

-- Not without a stamp at a server other than the gate: what it would get there is not what other servers know.
local function supersede_all()
  -- @include supersede
  for _, k in ipairs((IS_GATE or STAMP) and LOCKS or {}) do
    supersede(k, FIRST_FIELD)
  end
end

local function grant_all()
  local fences, slots = {}, {}
  if has(FLAGS, SUPERSEDES) then
    supersede_all()
  end
  for i, k in ipairs(LOCKS) do
    fences[i], slots[i] = grant(k, i)
  end
  return {
    'granted',
    run_id(),
    table.concat(fences, ' '),
    table.concat(slots, ' '),
    int_string(our_stamp()),
    int_string(known_for),
    int_string(longest_quarantine),
  }
end

-- Decides about locks of which at least one may be held or waited for.
local function decide()
  -- @include turn
  -- @include blocked
  -- @include supersede
  -- Not a program other than redlock, which wakes no client, nor a claim that expires soon.
  local function is_released_later(k)
    local _, info = holder_of(k)
    local expires = expires_in(k, MODE)
    return info and (expires < 0 or expires > WAITER_RENEWAL_MS)
  end

  local held, not_our_turn -- the first such key
  for i, k in ipairs(LOCKS) do
    local attempt
    attempt, k.entry = claim_of(k, ME)
    if attempt == ATTEMPT and SERVERS ~= '1' then
      return { ROLE == 'again' and 'kept' or 'duplicate_server' }
    end
    if attempt and attempt > ATTEMPT then
      return { 'stale' }
    end
    if not attempt then
      local refusal = current(k) and mismatch(k)
      refusal = refusal or superseded(k, i)
      if refusal then
        return refusal
      end
      local capacity = free_capacity(k, MODE)
      if capacity <= 0 then
        held = held or i
      end
      if capacity <= 0 or not is_our_turn(k, capacity) then
        not_our_turn = not_our_turn or i
        if IS_GATE and is_below_ancestor(k, ANCESTORS) then
          return { 'nested' }
        end
      end
    end
  end
  if not held and not not_our_turn then
    local reply = grant_all()
    if MODE ~= '' then
      wake_beside_us()
    end
    return reply
  end
  if QUEUES and has(FLAGS, SUPERSEDES) then
    supersede_all()
  end
  for _, k in ipairs(LOCKS) do
    if QUEUES then
      enqueue(k)
    end
    wake_next(k, true) -- the holder expired or the first waiter died: no release wakes the next one
  end
  local i = held or not_our_turn
  if ROLE == 'ahead' then
    waits_for_release = not held or is_released_later(LOCKS[i])
  end
  return blocked_by(i, call('ZRANK', LOCKS[i].queue, QUEUED))
end

-- The BLPOP behind a vote is to wait for a release, and for nothing else.
local function end_blpop()
  -- @include wakeup
  push_wakeup(ME)
end

if is_replica() then
  return { 'replica' }
end
local is_untouched = nothing_exists()
if not is_untouched and call('EXISTS', TOMBSTONE) == 1 then
  return { 'stale' }
end
local reply
local quarantine
quarantine, known_for, longest_quarantine = quarantine_left(QUARANTINE)
if quarantine > 0 then
  -- Even if the server has our claim, and even if the lock is taken: it may have an old copy of its data. It queues no
  -- client either, so that all clients turn to the same next gate.
  reply = { 'quarantined', int_string(quarantine), int_string(longest_quarantine) }
elseif is_untouched and not has(FLAGS, SUPERSEDES) then
  reply = grant_all()
else
  reply = decide()
end
if ROLE == 'ahead' and not waits_for_release then
  end_blpop()
end
return reply

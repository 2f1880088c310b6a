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
-- ARGV[14] history     how many finished runs log:K keeps; 0 = none
-- ARGV[15...]          field, value, ... for info:K
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
-- Most often nothing of the lock exists, and it is asked for exclusively. That is decided first, before the functions for
-- everything else are created.
--
-- @include constants
-- @include grant
-- @include fence

local TTL, ROLE, QUEUES, GATE, PROPOSED = ARGV[7], ARGV[8], ARGV[9] == '1', ARGV[10], ARGV[11]
local QUARANTINE, ANCESTORS = tonumber(ARGV[12]), ARGV[13]
local HISTORY, FIRST_FIELD = ARGV[14], 15
local IS_GATE = ROLE == 'gate'
local PROPOSED_FENCES = PROPOSED == '' and {} or numbers(PROPOSED)

-- A client's guess may be this far ahead of the server's clock: after a loss of all counters the clock alone keeps
-- tokens growing, and a quarantine lasts longer than this.
local GUESS_AHEAD_MS = 1000

if IS_REPLICA then
  return { 'replica' }
end

-- Whether there is no holder, no waiter and nothing left by one: most often one command tells this about a key.
local is_untouched = true
for _, k in ipairs(LOCKS) do
  k.history = HISTORY
  is_untouched = is_untouched and call('EXISTS', TOMBSTONE, k.lock, k.queue, k.info, k.shared) == 0
end
for _, k in ipairs(is_untouched and LOCKS or {}) do
  k.value, k.has_queue, k.is_untouched = false, false, true
end
if not is_untouched and call('EXISTS', TOMBSTONE) == 1 then
  return { 'stale' }
end
local quarantine, known_for, longest_quarantine = 0, 0, 0
if has_marker(QUARANTINE) then
  -- @include server
  quarantine, known_for, longest_quarantine = quarantine_left(QUARANTINE)
end

-- Grants with write() and undo(), see store_grant(); before that, prepare() is called, if there is anything to prepare.
-- SET comes first: a server that is out of memory refuses a script only if its first write takes memory.
-- If an earlier request of ours was granted and its reply was lost, this one replaces it. With a new token: the old one
-- was never used, and other clients may have had larger ones meanwhile.
local function grant_all(arrival, write, undo, prepare)
  local now, stamp_text, fences, slots = now_ms(), int_string(arrival), {}, {}
  for i, k in ipairs(LOCKS) do
    -- No token is below these. At the gate none is below the server's clock, so that tokens keep growing after the counter
    -- was lost; a vote is never below the gate's token.
    local proposed, clock = PROPOSED_FENCES[i] or 0, IS_GATE and now or 0
    if (IS_GATE or ROLE == 'newcomer') and proposed > now + GUESS_AHEAD_MS then
      proposed = 0
    end
    local info = {
      fence = int_string(next_fence(k, math.max(proposed, clock))), since = int_string(now),
      gate = IS_GATE and RUN_ID or GATE, stamp = stamp_text, claim = CLAIM, nodes = SERVERS,
    }
    set_fence(k, info.fence)
    if prepare then
      prepare(k)
    end
    store_grant(k, info, TTL, FIRST_FIELD, write, undo)
    fences[i], slots[i] = info.fence, info.slot
  end
  return {
    'granted',
    RUN_ID,
    table.concat(fences, ' '),
    table.concat(slots, ' '),
    stamp_text,
    int_string(known_for),
    int_string(longest_quarantine),
  }
end

-- An 'ahead' that is granted must end the BLPOP behind it.
local is_plain = MODE == '' and ROLE ~= 'ahead' and not has(FLAGS, SUPERSEDES)
if is_untouched and is_plain and quarantine <= 0 then
  return grant_all(FIRST_STAMP, write_exclusive)
end

-- Everything else.
--
-- @include queue

-- The functions for what is seldom there are created only where it is.
local function leave(k)
  -- @include queue
  return leave_queue(k)
end

local function write_shared(...)
  -- @include share
  write_share(...)
end

local function undo_shared(...)
  -- @include share
  undo_share(...)
end

-- Not without a stamp at a server other than the gate: what it would get there is not what other servers know.
local function supersede_all()
  -- @include supersede
  for _, k in ipairs((IS_GATE or STAMP) and LOCKS or {}) do
    supersede(k, FIRST_FIELD)
  end
end

local function log_expired_holders(k)
  -- @include expired
  pcall(log_expired, k)
end

local function leave_if_queued(k)
  k.was_queued = has_queue(k) and leave(k)
  k.was_free = not current(k)
  if k.was_free and not k.is_untouched then
    k.is_untouched = call('EXISTS', k.info, k.shared) == 0 -- but for the queue
    if not k.is_untouched then
      log_expired_holders(k)
    end
  end
end

local function take_turn()
  if has(FLAGS, SUPERSEDES) then
    supersede_all()
  end
  if MODE == '' then
    return grant_all(our_stamp(), write_exclusive, nil, leave_if_queued)
  end
  return grant_all(our_stamp(), write_shared, undo_shared, leave_if_queued)
end

-- We are blocked until a client releases the lock, and not for a shorter time.
local waits_for_release

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
    local reply = take_turn()
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
      enqueue(k, FIRST_FIELD)
    end
    wake_next(k, true) -- the holder expired or the first waiter died: no release wakes the next one
  end
  local i = held or not_our_turn
  if ROLE == 'ahead' then
    waits_for_release = not held or is_released_later(LOCKS[i])
  end
  return blocked_by(i, call('ZRANK', LOCKS[i].queue, QUEUED))
end

-- The only server: when its quarantine is over, the waiters are served in the order in which they came.
local function join_queues()
  -- @include queue
  for _, k in ipairs(LOCKS) do
    enqueue(k, FIRST_FIELD)
  end
end

-- The BLPOP behind a vote is to wait for a release, and for nothing else.
local function end_blpop()
  -- @include wakeup
  push_wakeup(ME)
end

local reply
if quarantine > 0 then
  -- Even if the server has our claim, and even if the lock is taken: it may have an old copy of its data. One of several
  -- queues no client either, so that all clients turn to the same next gate.
  if QUEUES and SERVERS == '1' then
    join_queues()
  end
  reply = { 'quarantined', int_string(quarantine), int_string(longest_quarantine) }
elseif is_untouched and not has(FLAGS, SUPERSEDES) then
  reply = take_turn()
else
  reply = decide()
end
if ROLE == 'ahead' and not waits_for_release then
  end_blpop()
end
return reply

-- Grant all locks if each is free and it is our turn; otherwise grant none, and join each queue.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7]  ttl         how long the locks stay, ms; 0 = they never expire
-- ARGV[8]  role        'gate'; 'vote' = the client has the gate's vote; 'newcomer' = the client
--                      asks the gate at the same time
-- ARGV[9]  queues      '1' = join the queues if blocked; '0' = do not
-- ARGV[10] gate        run_id of the client's gate, for a vote
-- ARGV[11] proposed    tokens: the gate's, for a vote; otherwise the client's guess; '' = none
-- ARGV[12] quarantine  how long a server that lost its data must not vote, ms; 0 = off
-- ARGV[13] ancestors   names of the waiters that the client runs under
-- ARGV[14] history     number of finished runs that log:K keeps; 0 = none
-- ARGV[15] slots       for a vote, the gate's slots; for the gate, the slots from which on it looks for
--                      a free one; '' = the server chooses, or there are none
-- ARGV[16] once        do not grant the locks if a run with this option has succeeded within this
--                      time, ms; '' = without the option
-- ARGV[17] lease       how long the client relies on them, ms: the ttl without a minimum hold
-- ARGV[18...]          field, value, ... for info:K
--
-- Returns {'granted', run_id, tokens, slots, stamp, ms for which this server has been known,
--           longest bound: ms, and ms since it was raised, see include/marker.lua}
--      or {'blocked', key, position, holder...}: see include/blocked.lua
--      or {'quarantined', ms left, longest bound}: this server may have lost grants, and
--         does not vote yet
--      or {'nested'}: an ancestor holds a lock that we would wait for
--      or {'done', age in ms, client as JSON}: see include/done.lua
--      or {'superseded', key, field, value, ...}: by a newer request, which the fields describe
--      or {'stale'}: a newer request of this waiter came first, or the waiter has given up
--      or {'replica'}
--      or {'different_server_count', n}: held as a lock over n servers
--      or {'slots_mismatch', n}: held with n slots (0 = without slots)
--      or {'other_protocol', protocol, version}: see include/protocol.lua.
--
-- Atomic, so that "free", "our turn" and "granted" are one moment for all keys, and so that waiters
-- for several keys join all queues in the same order and cannot wait for each other.
--
-- Redis creates the functions of a script at each call, when it reaches them. In most calls nothing
-- of the lock exists, and the request is exclusive. The code for all other cases is in decide().
--
-- @include constants
-- @include grant
-- @include fence

local TTL, ROLE, QUEUES, GATE, PROPOSED = ARGV[7], ARGV[8], ARGV[9] == '1', ARGV[10], ARGV[11]
local QUARANTINE, ANCESTORS = tonumber(ARGV[12]), ARGV[13]
local HISTORY, SLOT_NUMBERS, ONCE = ARGV[14], ARGV[15], tonumber(ARGV[16])
local LEASE, FIRST_FIELD = tonumber(ARGV[17]), 18
local IS_GATE = ROLE == 'gate'

-- A client's guess may be at most this far ahead of the server's clock. After the loss of all
-- counters only the clock keeps tokens growing, and a quarantine lasts longer than this.
local GUESS_AHEAD_MS = 1000

if IS_REPLICA then
  return { 'replica' }
end

-- `is_untouched`: there is no holder, no waiter and nothing left by either. One command usually
-- decides. If only the queue exists, there are waiters and nothing else.
local is_untouched, may_have_tombstone = true, true
for _, k in ipairs(LOCKS) do
  local found = call('EXISTS', TOMBSTONE, k.lock, k.queue, k.info, k.shared)
  k.history, k.has_queue = HISTORY, found > 0 and call('EXISTS', k.queue) == 1
  k.is_clean = found == (k.has_queue and 1 or 0)
  if k.is_clean then
    k.value, may_have_tombstone = false, false
  end
  is_untouched = is_untouched and found == 0
end
if may_have_tombstone and call('EXISTS', TOMBSTONE) == 1 then
  return { 'stale' }
end
local quarantined_for, known_ms, longest_bound = 0, 0, '0 0'
if NEEDS_MARKER or QUARANTINE ~= 0 then
  -- @include marker
  quarantined_for, known_ms, longest_bound = quarantine_left(QUARANTINE, LEASE, FIRST_FIELD)
end

-- How a grant is written: see store_grant(). `prepare` is called before each grant, `finish` after
-- the last one.
local arrival, write, undo, prepare, finish = FIRST_STAMP, write_exclusive, nil, nil, nil
local is_superseding = string.find(FLAGS, SUPERSEDES, 1, true)

-- Anything but the plain case: a holder, a waiter or their remains exist, or the request is not a
-- plain one.
if not is_untouched or MODE ~= '' or quarantined_for > 0 or is_superseding or ONCE then
  -- Returns the reply if the request is refused.
  local function decide()
    for i, slot in ipairs(SLOT_NUMBERS ~= '' and numbers(SLOT_NUMBERS) or {}) do
      LOCKS[i][IS_GATE and 'lowest_slot' or 'slot'] = slot
    end
    -- @include queue
    -- @include turn
    -- @include share
    -- @include blocked
    -- @include supersede
    -- @include done
    -- @include expired

    -- A quarantined server refuses even if it has our claim, and even if the lock is held: its data
    -- may be an old copy. One of several servers does not queue us either, so that all clients turn
    -- to the same next gate. A single server does: when its quarantine is over, it serves waiters
    -- in the order in which they came.
    local function wait_for_quarantine()
      for _, k in ipairs(QUEUES and SERVERS == '1' and LOCKS or {}) do
        enqueue(k, FIRST_FIELD)
      end
      return { 'quarantined', int_string(quarantined_for), longest_bound }
    end

    -- Finds out whether we already hold any of the locks, and their capacity for our mode. Returns
    -- a reply if waiting would not help.
    local function check_holders()
      for i, k in ipairs(LOCKS) do
        k.is_ours, k.entry = claim_of(k, ME)
        if k.is_ours and k.is_ours > ATTEMPT then
          return { 'stale' }
        end
        local refusal = not k.is_ours and (current(k) and mismatch(k) or is_superseding and superseded(k, i))
        if refusal then
          return refusal
        end
        k.capacity = free_capacity(k, MODE)
        -- Servers vote for a slot as for an exclusive lock: holders of other slots, and waiters, do
        -- not matter.
        if k.slot and current(k) == MODE then
          k.holder = holder_of_slot(k, k.slot)
          k.holder_info = k.holder and read_info(k, parse_claim(k.holder))
          k.capacity = k.holder and 0 or 1
        end
      end
    end

    -- Whether it is our turn for K, which has capacity for our mode. A request that joins does not
    -- wait for its turn while its mode holds the lock.
    local function is_our_turn(k)
      if has(FLAGS, JOINS) and current(k) == MODE then
        return true
      end
      remove_dead_waiters(k)
      local ahead = count_ahead(k)
      return ahead == 0 or ahead < k.capacity and are_of_our_mode(k, ahead)
    end

    -- Called when our request queues or is granted. Without a stamp only the gate does this: a
    -- stamp that another server assigned would be unknown to the rest.
    local function supersede_all()
      for _, k in ipairs((IS_GATE or STAMP) and LOCKS or {}) do
        supersede(k, FIRST_FIELD)
      end
    end

    -- `held`: the first key that is held; `not_our_turn`: the first key for which it is not our
    -- turn. Returns the reply.
    local function wait_for_turn(held, not_our_turn)
      for _, k in ipairs(IS_GATE and LOCKS or {}) do
        if k.must_wait and is_below_ancestor(k, ANCESTORS) then
          return { 'nested' }
        end
      end
      if QUEUES and is_superseding then
        supersede_all()
      end
      -- This comes before we queue anywhere: an old place of ours may have expired in one queue and
      -- not in another, and two waiters for the same keys in different orders would wait for each
      -- other.
      for _, k in ipairs(LOCKS) do
        remove_dead_waiters(k)
      end
      for _, k in ipairs(LOCKS) do
        if QUEUES then
          enqueue(k, FIRST_FIELD)
        end
        -- Our vote for another slot is one that other servers have refused.
        local is_obsolete = k.slot and k.entry and k.is_ours < ATTEMPT
        if is_obsolete then
          remove_entry(k, k.entry)
        end
        -- If the holder expired or the first waiter died, no release wakes the next one.
        -- A vote for a taken slot changes nothing for waiters that can have another slot.
        if is_obsolete or not k.slot then
          wake_next(k, true)
        end
      end
      local shown = held or not_our_turn
      return blocked_by(shown, call('ZRANK', LOCKS[shown].queue, QUEUED))
    end

    -- Called before K becomes ours: leaves its queue, and logs the last holder if its lease expired
    -- without a release.
    local function take_over(k)
      if not k.has_queue and k.is_clean then
        return
      end
      k.was_queued = k.has_queue and leave_queue(k)
      k.was_free = not current(k)
      if k.was_free and not k.is_clean then
        k.is_clean = call('EXISTS', k.info, k.shared) == 0
        if not k.is_clean then
          pcall(log_expired, k)
        end
      end
    end

    -- Returns a reply if we must wait, or can never get the locks.
    local function check_locks()
      if quarantined_for > 0 then
        return wait_for_quarantine()
      end
      local done = ONCE and done_reply(ONCE)
      if done then
        return done
      end
      local is_any_held, held, not_our_turn
      for _, k in ipairs(LOCKS) do
        k.capacity = 1
        is_any_held = is_any_held or MODE ~= '' or current(k)
      end
      local refusal = (is_any_held or is_superseding) and check_holders()
      if refusal then
        return refusal
      end
      for i, k in ipairs(LOCKS) do
        k.must_wait = (not k.is_ours or k.slot) and k.capacity <= 0
        held = held or k.must_wait and i
        if not k.is_ours and not k.slot and k.capacity > 0 and k.has_queue then
          -- The first waiter need not know which of the others are dead if its request is
          -- exclusive.
          k.is_first = MODE == '' and call('ZRANK', k.queue, QUEUED) == 0
          k.must_wait = not k.is_first and not is_our_turn(k)
        end
        not_our_turn = not_our_turn or k.must_wait and i
      end
      if not_our_turn then
        return wait_for_turn(held, not_our_turn)
      end
    end

    if not is_untouched or is_superseding or quarantined_for > 0 or ONCE then
      local refusal = check_locks()
      if refusal then
        return refusal
      end
    end
    if is_superseding then
      supersede_all()
    end
    arrival, prepare = our_stamp(), take_over
    if MODE ~= '' then
      write, undo, finish = write_share, undo_share, not is_untouched and wake_beside_us
    end
  end
  local refusal = decide()
  if refusal then
    return refusal
  end
end

for _, k in ipairs(LOCKS) do
  k.last_fence = last_fence(k)
  local can_grow = (tonumber(k.last_fence) or LARGEST_FENCE) < LARGEST_FENCE
  if not can_grow then
    return redis.error_reply('ERR the fencing token at ' .. k.fence .. ' cannot grow: replace it by a smaller '
      .. 'one that no storage has seen, or delete it')
  end
end

-- SET comes first: a server that is out of memory refuses a script only if its first write takes
-- memory. If an earlier request of ours was granted and its reply was lost, this one replaces it,
-- with a new token: the old one was never used, and other clients may have got larger ones since.
local stamp_text, fences, slots = int_string(arrival), {}, {}
local proposed_fences = PROPOSED ~= '' and numbers(PROPOSED) or {}
for i, k in ipairs(LOCKS) do
  -- Lower bounds of the token. At the gate it is never below the server's clock, so that tokens
  -- keep growing after the counter was lost; a vote is never below the gate's token.
  local proposed, clock = proposed_fences[i] or 0, IS_GATE and NOW_MS or 0
  if (IS_GATE or ROLE == 'newcomer') and proposed > NOW_MS + GUESS_AHEAD_MS then
    proposed = 0
  end
  local info = {
    fence = int_string(math.max(k.last_fence + 1, proposed, clock)), since = int_string(NOW_MS),
    gate = IS_GATE and RUN_ID or GATE, stamp = stamp_text, claim = CLAIM, nodes = SERVERS,
  }
  set_fence(k, info.fence)
  if prepare then
    prepare(k)
  end
  store_grant(k, info, TTL, FIRST_FIELD, write, undo)
  fences[i], slots[i] = info.fence, info.slot
end
if finish then
  finish()
end
return {
  'granted',
  RUN_ID,
  table.concat(fences, ' '),
  table.concat(slots, ' '),
  stamp_text,
  int_string(known_ms),
  longest_bound,
}

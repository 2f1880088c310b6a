-- Take all locks if each is free for us and it is our turn; otherwise take none, but join each queue.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7]  ttl         of the locks, ms; 0 = they never expire
-- ARGV[8]  role        'gate'; 'vote' = the client has the gate's vote; 'newcomer' = it asks the gate at the same time
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
-- Most often nothing of the lock exists, and it is asked for exclusively. So the functions for everything else are in
-- include/decide.lua and others, and are created only in the branches that need them.
--
-- @include constants
-- @include grant
-- @include fence

local TTL, ROLE, QUEUES, GATE, PROPOSED = ARGV[7], ARGV[8], ARGV[9] == '1', ARGV[10], ARGV[11]
local QUARANTINE, ANCESTORS = tonumber(ARGV[12]), ARGV[13]
local HISTORY, FIRST_FIELD = ARGV[14], 15
local IS_GATE = ROLE == 'gate'

-- A client's guess may be this far ahead of the server's clock: after a loss of all counters the clock alone keeps
-- tokens growing, and a quarantine lasts longer than this.
local GUESS_AHEAD_MS = 1000

if IS_REPLICA then
  return { 'replica' }
end

-- Whether there is no holder, no waiter and nothing left by one: most often one command tells this about a key, and if it
-- finds one thing, which is the queue, that nothing but waiters is there.
local is_untouched, may_have_given_up = true, true
for _, k in ipairs(LOCKS) do
  local found = call('EXISTS', TOMBSTONE, k.lock, k.queue, k.info, k.shared)
  k.history, k.has_queue = HISTORY, found > 0 and call('EXISTS', k.queue) == 1
  k.is_clean = found == (k.has_queue and 1 or 0)
  if k.is_clean then
    k.value, may_have_given_up = false, false
  end
  is_untouched = is_untouched and found == 0
end
if may_have_given_up and call('EXISTS', TOMBSTONE) == 1 then
  return { 'stale' }
end
local quarantine, known_for, longest_quarantine = 0, 0, 0
if NEEDS_MARKER or QUARANTINE ~= 0 then
  -- @include server
  quarantine, known_for, longest_quarantine = quarantine_left(QUARANTINE)
end

-- How the grant is written down: see store_grant().
local arrival, write, undo = FIRST_STAMP, write_exclusive, nil
local is_superseding = string.find(FLAGS, SUPERSEDES, 1, true)
if not is_untouched or MODE ~= '' or quarantine > 0 or is_superseding then
  -- @include queue
  local refusal
  if quarantine > 0 then
    -- @include decide
    refusal = wait_for_quarantine()
  elseif not is_untouched or is_superseding then
    local is_any_held, held, not_our_turn
    for _, k in ipairs(LOCKS) do
      k.capacity = 1
      is_any_held = is_any_held or MODE ~= '' or current(k)
    end
    if is_any_held or is_superseding then
      -- @include decide
      refusal = look_at_holders()
    end
    for i, k in ipairs(refusal and {} or LOCKS) do
      k.must_wait = not k.is_ours and k.capacity <= 0
      held = held or k.must_wait and i
      if not k.is_ours and k.capacity > 0 and k.has_queue then
        -- The first one need not know who of the others is dead, if it wants the lock for itself alone.
        k.is_first = MODE == '' and call('ZRANK', k.queue, QUEUED) == 0
        if not k.is_first then
          -- @include decide
          k.must_wait = not is_our_turn(k)
        end
      end
      not_our_turn = not_our_turn or k.must_wait and i
    end
    if not_our_turn then
      -- @include decide
      refusal = wait_for_turn(held, not_our_turn)
    end
  end
  if refusal then
    return refusal
  end
  if is_superseding then
    -- @include decide
    supersede_all()
  end
  arrival = our_stamp()
  if MODE ~= '' then
    -- @include share
    write, undo = write_share, undo_share
  end
end

local proposed_fences = {}
if PROPOSED ~= '' then
  -- @include request
  proposed_fences = numbers(PROPOSED)
end

-- SET comes first: a server that is out of memory refuses a script only if its first write takes memory.
-- If an earlier request of ours was granted and its reply was lost, this one replaces it. With a new token: the old one
-- was never used, and other clients may have had larger ones meanwhile.
local stamp_text, fences, slots = string.format(INTEGER, arrival), {}, {}
for i, k in ipairs(LOCKS) do
  -- No token is below these. At the gate none is below the server's clock, so that tokens keep growing after the counter
  -- was lost; a vote is never below the gate's token.
  local proposed, clock = proposed_fences[i] or 0, IS_GATE and NOW_MS or 0
  if (IS_GATE or ROLE == 'newcomer') and proposed > NOW_MS + GUESS_AHEAD_MS then
    proposed = 0
  end
  local info = {
    fence = string.format(INTEGER, math.max(last_fence(k) + 1, proposed, clock)), since = string.format(INTEGER, NOW_MS),
    gate = IS_GATE and RUN_ID or GATE, stamp = stamp_text, claim = CLAIM, nodes = SERVERS,
  }
  set_fence(k, info.fence)
  if k.has_queue or not k.is_clean then
    -- @include decide
    take_over(k)
  end
  store_grant(k, info, TTL, FIRST_FIELD, write, undo)
  fences[i], slots[i] = info.fence, info.slot
end
if MODE ~= '' and not is_untouched then
  -- @include turn
  wake_beside_us()
end
return {
  'granted',
  RUN_ID,
  table.concat(fences, ' '),
  table.concat(slots, ' '),
  stamp_text,
  string.format(INTEGER, known_for),
  string.format(INTEGER, longest_quarantine),
}

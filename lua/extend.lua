-- Renew the locks, but only if all are still ours.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] ttl         how long the locks stay, ms; 0 = they never expire
-- ARGV[8] quarantine  how long a server that lost its data must not vote, ms; 0 = off
-- ARGV[9] gate        run_id of the client's gate, for a server that voted for a newcomer, before
--                     the gate and the stamp were known; '' = the server has both
-- ARGV[10] history    number of finished runs that log:K keeps; 0 = none
-- ARGV[11] lease      how long the client relies on them, ms: the ttl without a minimum hold
--
-- Returns {'extended', run_id, ms of quarantine left or 0}; for a bearer followed by each lock's
--         record, as JSON with held_for, the ms since the grant
--      or {'expired'}: not ours, and free now
--      or {'foreign'}: not ours, and not free
--      or {'broken', field, value, ...}: still ours, but marked, and not renewed; the fields
--         describe the breaking client
--      or {'ended', how, field, value, ...}: 'released' by its token, or 'broken'; the fields
--         describe the client that did it
--      or, only for a bearer, {'different_server_count', n}, {'different_lock_count', n} or
--         {'other_protocol', protocol, version}.
--
-- Atomic, so that only a claim that was compared is renewed. A lock is never created: one that was
-- freed, flushed or has expired may have been held by another client in between.
--
-- @include holders
-- @include mark
-- @include bearer
-- @include grant

local TTL, QUARANTINE, GATE = ARGV[7], tonumber(ARGV[8]), ARGV[9]
-- The MODE of a client that has only the token: see include/bearer.lua.
local IS_BEARER = MODE == '?'

-- A renewal never shortens a lease on which a process relies: a late one may meet what was granted
-- since, with a longer ttl. Only a lock that nothing renews is shortened, by the client that has its
-- token. That must keep a minimum hold; other clients include it in the ttl, unless it is a mere vote.
local function longest_ttl(k)
  local at_least = IS_BEARER and min_hold_left(k.holder_record) or 0
  if has_process(k.holder_record) then
    local until_ms = is_shared(k) and call('ZSCORE', k.shared, k.entry)
    local left = until_ms == 'inf' and -1 or until_ms and until_ms - NOW_MS or call('PTTL', k.lock)
    if left < 0 then
      return '0'
    end
    at_least = math.max(at_least, left)
  end
  return TTL == '0' and TTL or int_string(math.max(tonumber(TTL), at_least))
end

-- The record with which a client heals a server that has lost the claim.
local function record_with_age(k)
  local since = tonumber(k.holder_record.since)
  k.holder_record.held_for = since and int_string(math.max(NOW_MS - since, 0))
  return cjson.encode(k.holder_record)
end

-- Redis creates functions when it reaches them: those that most renewals do not need are inside
-- these two.
local function ended_reply()
  -- @include trace
  return trace_reply()
end

local function renew_share(...)
  -- @include share
  renew_entry(...)
end

local function set_ttl(key, ttl)
  if ttl == '0' then
    call('PERSIST', key)
  else
    call('PEXPIRE', key, ttl)
  end
end

local refused = IS_BEARER and refusal()
if refused then
  return ended_reply() or refused
end
local quarantined_for = 0
if NEEDS_MARKER or QUARANTINE ~= 0 then
  -- @include marker
  quarantined_for = math.max(quarantine_left(QUARANTINE, tonumber(ARGV[11])), 0)
end
local lost, broken
for _, k in ipairs(LOCKS) do
  local attempt, entry = claim_of(k, ME, true)
  k.entry, k.holder_record = entry, read_info(k, ME) or {}
  k.history = IS_BEARER and k.holder_record.history or ARGV[10]
  broken = broken or (attempt == ATTEMPT and is_marked(entry) and k)
  -- Released by its token; only its minimum hold keeps it.
  if attempt ~= ATTEMPT or k.holder_record.ended then
    lost = (free_capacity(k, MODE) <= 0 or lost == 'foreign') and 'foreign' or 'expired'
  end
end
if lost then
  return ended_reply() or { lost }
end
if broken then
  return broken_reply(broken)
end
for _, k in ipairs(LOCKS) do
  local ttl = longest_ttl(k)
  -- A command that takes no memory comes first: a server that is out of memory lets such a script
  -- continue. Others may share the lock for longer, and the rest may be refused: it changes nothing.
  if is_shared(k) then
    local left = call('PTTL', k.lock)
    set_ttl(k.lock, left < 0 and '0' or int_string(math.max(left, 1)))
    renew_share(k, k.entry, ttl)
  else
    set_ttl(k.lock, ttl)
    set_ttl(k.info, ttl == '0' and ttl or record_ttl(k, ttl))
  end
  if GATE ~= '' then
    local info = read_info(k, ME)
    set_info_field(k, info, 'gate', GATE)
    set_info_field(k, info, 'stamp', ARGV[6])
  end
end
if IS_BEARER and tonumber(LOCKS[1].holder_record.keeper) then
  notify_holder('extended ' .. TTL)
end
local reply = { 'extended', RUN_ID, int_string(quarantined_for) }
for _, k in ipairs(IS_BEARER and LOCKS or {}) do
  reply[#reply + 1] = record_with_age(k)
end
return reply

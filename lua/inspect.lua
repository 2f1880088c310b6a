-- Report the holders and waiters of locks. Writes nothing, so that it runs for a user with read
-- permission only, on a server that is out of memory, and on a replica.
--
-- KEYS: nine for each key K of the user, then one for all of them:
--   lock:K, queue:K, waiters:K, info:K, fence:K, shared:K, who:K, log:K, done:K, marker
-- See include/request.lua.
--
-- ARGV[1] holders     maximum number of holders described for each lock
-- ARGV[2] waiters     maximum number of waiters described for each lock
-- ARGV[3] log         '1' = report the last entry of the first lock's log, and the expired holders
--                     that are not in it yet; '0' = do not
-- ARGV[4] durations   number of finished runs whose times are reported for each lock; 0 = none
--
-- Returns {server time in microseconds, run_id ('' = unknown), '1' if this server is a replica or
--   '0', ms of quarantine left, id of the last entry of the first log ('' = not requested), expired
--   holders of the first lock that no client has logged, then for each key
--   {'lock', claim or mode tag ('' = free; 'foreign:' and its digest for a foreign value), ms until
--    it expires (-1 = never), last token ('' = none), number of holders, holders, number of
--    waiters, waiters, mark of success ('' = none, see include/done.lua), ms for which the
--    last runs held it that have not failed: '7 8'}
--   or {'wrong_type'}}.
-- A holder is {claim or entry, ms until it expires, JSON}, an expired one {claim or entry, ms at
-- which it ended, JSON}, a waiter {name in the queue, score there, JSON, ms until which it
-- counts as alive}.
--
-- Atomic, so that the report on a lock was true at one moment.
--
-- @include sharers
-- @include expired
-- @include marker
-- @include constants

local MAX_HOLDERS, MAX_WAITERS = tonumber(ARGV[1]), tonumber(ARGV[2])

-- Whether a caught error means that a key has another type.
local function is_wrong_type(why)
  return string.find(tostring(type(why) == 'table' and why.err or why), 'WRONGTYPE', 1, true)
end

local function expires_in(until_ms)
  return until_ms == 'inf' and -1 or math.max(tonumber(until_ms) - NOW_MS, 0)
end

local function sharers(k)
  local list, after, to = {}, live_range()
  local entries = call('ZRANGEBYSCORE', k.shared, after, to, 'WITHSCORES', 'LIMIT', 0, MAX_HOLDERS)
  for i = 1, #entries, 2 do
    local json = call('HGET', k.info, parse_claim(entries[i]) or '')
    list[#list + 1] = { entries[i], expires_in(entries[i + 1]), json or '' }
  end
  return count_live(k), list
end

local function holders(k)
  local value = current(k)
  if parse_claim(value) then
    return 1, { { value, call('PTTL', k.lock), call('HGET', k.info, (parse_claim(value))) or '' } }
  elseif max_holders(value) then
    return sharers(k)
  end
  return 0, {}
end

-- The live waiters, in order.
local function waiters(k)
  local list, now = {}, NOW_MS
  local queued = MAX_WAITERS > 0 and call('ZRANGE', k.queue, 0, MAX_WAITERS - 1, 'WITHSCORES') or {}
  for i = 1, #queued, 2 do
    local lease = tonumber(call('ZSCORE', k.waiters, queued[i]) or 0)
    if lease > now then
      local who = redis.pcall('HGET', k.who, string.match(queued[i], '^%S+'))
      list[#list + 1] = { queued[i], queued[i + 1], type(who) == 'string' and who or '', int_string(lease) }
    end
  end
  return call('ZCOUNT', k.waiters, '(' .. int_string(now), '+inf'), list
end

-- For how long the last runs held the lock that have not failed. Nothing without permission
-- to read the log.
local function durations(k)
  local list = {}
  for _, entry in ipairs(redis.pcall('XREVRANGE', k.log, '+', '-', 'COUNT', ARGV[4])) do
    local fields = {}
    for i = 1, #entry[2], 2 do
      fields[entry[2][i]] = entry[2][i + 1]
    end
    if fields.how == 'released' and (fields.exit == '0' or fields.exit == '') then
      list[#list + 1] = fields.held
    end
  end
  return table.concat(list, ' ')
end

local function inspect_lock(k)
  local value = current(k)
  local holder_count, holder_list = 0, {}
  if value then
    holder_count, holder_list = holders(k)
  end
  local waiter_count, waiter_list = waiters(k)
  local expires = value and call('PTTL', k.lock) or -1
  -- A foreign value may have any size. A tag without sharers counts as foreign: it must expire.
  if value and holder_count == 0 then
    value = 'foreign:' .. redis.sha1hex(value)
  end
  return { 'lock', value or '', expires, call('GET', k.fence) or '', holder_count, holder_list,
    waiter_count, waiter_list, call('GET', k.done) or '',
    ARGV[4] ~= '0' and durations(k) or '' }
end

-- The ms of quarantine left, as quarantine_left() computes it, but without writing a marker.
local function quarantine_of(text, identity)
  local marked, since, longest, _, raised = parse_marker(text)
  if not marked then
    return 0 -- no client has used this server yet
  end
  local ours = identity ~= '' and reign(identity)
  if not ours then
    since = NOW_MS
  elseif not is_our_reign(marked, ours) then
    since = shard_known_since('read', ours)
  end
  -- A bound that is forgotten still says that there are quarantines at all.
  if longest == 0 then
    longest = math.min(tonumber(string.match(text, '^%S+ %d+ (%d+)')), USUAL_LEASE_MS)
  end
  local is_over = longest == 0 or is_in_good_standing(since, longest, raised)
  return is_over and 0 or math.max(longest + 1000 - math.max(NOW_MS - since, 0), 0)
end

-- Returns '$', the end of any stream, if the key has another type.
local function last_log_id()
  local ok, entries = pcall(call, 'XREVRANGE', KEYS[8], '+', '-', 'COUNT', 1)
  if ok then
    return entries[1] and entries[1][1] or '0-0'
  end
  return is_wrong_type(entries) and '$' or fail(entries)
end

-- The holders that log_expired() of include/expired.lua would log.
local function expired_holders()
  local list, info, json = {}, record_left_in({ info = KEYS[4], shared = KEYS[6] })
  if info then
    if parse_claim(info.claim) ~= parse_claim(call('GET', KEYS[1]) or '') then
      list[1] = { info.claim, int_string(lease_end(KEYS[4])), json }
    end
    return list
  end
  local entries = call('ZRANGEBYSCORE', KEYS[6], '-inf', int_string(NOW_MS), 'WITHSCORES', 'LIMIT', 0, MAX_HOLDERS)
  for i = 1, #entries, 2 do
    list[#list + 1] = { entries[i], entries[i + 1], call('HGET', KEYS[4], parse_claim(entries[i]) or '') or '' }
  end
  return list
end

local function expired_or_nothing()
  local ok, list = pcall(expired_holders)
  return ok and list or {}
end

-- The server's identity is left out if INFO is not available.
local marker_text = call('GET', KEYS[#KEYS]) or ''
local is_offered, identity = pcall(server_id, marker_text)
identity = is_offered and identity or ''

local WITH_LOG = ARGV[3] == '1'
local reply = { NOW_US, identity, IS_REPLICA and '1' or '0', quarantine_of(marker_text, identity),
  WITH_LOG and last_log_id() or '', WITH_LOG and expired_or_nothing() or {} }
for i = 1, #KEYS - 1, 9 do
  local lock, queue, waiters_key, info, fence, shared, who, log, done = unpack(KEYS, i, i + 8)
  local k = {
    lock = lock, queue = queue, waiters = waiters_key, info = info, fence = fence, shared = shared, who = who,
    log = log, done = done,
  }
  local ok, found = pcall(inspect_lock, k)
  if not ok then
    if not is_wrong_type(found) then
      fail(found)
    end
    found = { 'wrong_type' }
  end
  reply[#reply + 1] = found
end
return reply

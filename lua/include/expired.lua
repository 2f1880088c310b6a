-- Holders whose lease expired without a release: the next client logs them. A failure to log is
-- never an error.
-- @include info
-- @include log

-- Logs a run that did not log its own end: it was broken, or its lease has expired. A run that has
-- logged its end, or keeps no history, is skipped. The time of its end is a field, because entries
-- are in the order in which they are written.
local function log_for_holder(k, entry, info, how, ended, by)
  local max_entries = tostring(info and not info.ended and info.history or '0')
  if max_entries == '0' then
    return
  end
  -- As planned: no process renewed it.
  if how == 'expired' and info.keeper == 'none' then
    how = 'elapsed'
  end
  local since, arrived = tonumber(info.since), info.nodes == '1' and tonumber(info.stamp)
  local fields = {}
  for _, field in ipairs({ 'host', 'pid', 'user', 'label', 'command', 'job_url', 'version', 'protocol' }) do
    fields[#fields + 1] = field
    fields[#fields + 1] = tostring(info[field] or '')
  end
  append_to_log(k, max_entries, 'ended', int_string(ended), 'claim',
    string.match(entry, '^[%x-]+%.%d+') or '', 'how', how, 'exit', '', 'signal', '', 'waited', since and arrived and int_string(math.max(since - arrived / 1000, 0)) or '',
    'held', since and int_string(math.max(ended - since, 0)) or '', 'fence', tostring(info.fence or ''),
    'mode', tostring(info.mode or ''), 'slot', tostring(info.slot or ''), 'by', by, unpack(fields))
end

-- The time at which the lease of an exclusive holder ended, from the expiry of its record. If the
-- record does not expire, the lock was deleted: just now, as far as we know.
local function lease_end(info_key)
  local left = call('PTTL', info_key)
  return NOW_MS - (left < 0 and 0 or math.max(LOG_TTL_MS - left, 0))
end

-- At most this many are logged at once: those that expired last.
local MAX_EXPIRED_LOGGED = 200

-- `entries`: entries of shared:K, each followed by its score, in order of expiry.
local function log_expired_entries(k, entries)
  for i = math.max(#entries - 2 * MAX_EXPIRED_LOGGED, 0) + 1, #entries, 2 do
    local info = decode_info(call('HGET', k.info, parse_claim(entries[i]) or ''))
    log_for_holder(k, entries[i], info, 'expired', tonumber(entries[i + 1]), '')
  end
end

-- The record that an exclusive holder has left in info:K, decoded and as JSON; nothing if the lock
-- was shared.
local function record_left_in(k)
  if call('ZCOUNT', k.shared, '-inf', '+inf') > 0 then
    return
  end
  local waiter, json = unpack(call('HGETALL', k.info))
  local info = decode_info(json)
  if info and parse_claim(tostring(info.claim)) == waiter then
    return info, json
  end
end

-- Logs the holders that expired. K must be free.
local function log_expired(k)
  local info = record_left_in(k)
  if info then
    log_for_holder(k, info.claim, info, 'expired', lease_end(k.info), '')
  else
    log_expired_entries(k, call('ZRANGEBYSCORE', k.shared, '-inf', int_string(NOW_MS), 'WITHSCORES'))
  end
end

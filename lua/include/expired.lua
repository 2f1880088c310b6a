-- Holders whose lease has ended without a word of theirs: the next client that comes writes that into the log. Never an
-- error.
-- @include info
-- @include log

-- A run that does not end itself: it was broken, or its lease has ended. Nothing of one that has told its end, or wants no
-- history. The time at which it ended is a field, since entries are in the order in which they are written.
local function log_for_holder(k, entry, info, how, ended, by)
  local most = tostring(info and not info.ended and info.history or '0')
  if most == '0' then
    return
  end
  local since, asked = tonumber(info.since), info.nodes == '1' and tonumber(info.stamp)
  local fields = {}
  for _, field in ipairs({ 'host', 'pid', 'user', 'label', 'command', 'job_url' }) do
    fields[#fields + 1] = field
    fields[#fields + 1] = tostring(info[field] or '')
  end
  append_to_log(k, most, 'ended', int_string(ended), 'claim', string.match(entry, '^[%x-]+%.%d+') or '', 'how', how,
    'exit', '', 'signal', '', 'waited', since and asked and int_string(math.max(since - asked / 1000, 0)) or '',
    'held', since and int_string(math.max(ended - since, 0)) or '', 'fence', tostring(info.fence or ''),
    'mode', tostring(info.mode or ''), 'slot', tostring(info.slot or ''), 'by', by, unpack(fields))
end

-- When the lease of the exclusive holder ended whose record this is. One that does not expire is of a lock that was
-- deleted just now, as far as we know.
local function lease_end(info_key)
  local left = call('PTTL', info_key)
  return NOW_MS - (left < 0 and 0 or math.max(LOG_TTL_MS - left, 0))
end

-- Of more the last ones to expire are enough.
local EXPIRED_AT_ONCE = 200

-- `entries`: of shared:K, each with its score behind it, the first to expire first.
local function log_expired_entries(k, entries)
  for i = math.max(#entries - 2 * EXPIRED_AT_ONCE, 0) + 1, #entries, 2 do
    local info = decode_info(call('HGET', k.info, parse_claim(entries[i]) or ''))
    log_for_holder(k, entries[i], info, 'expired', tonumber(entries[i + 1]), '')
  end
end

-- The record that an exclusive holder has left in info:K, decoded and as JSON. Nothing if the lock was shared.
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

-- K is free.
local function log_expired(k)
  local info = record_left_in(k)
  if info then
    log_for_holder(k, info.claim, info, 'expired', lease_end(k.info), '')
  else
    log_expired_entries(k, call('ZRANGEBYSCORE', k.shared, '-inf', int_string(NOW_MS), 'WITHSCORES'))
  end
end

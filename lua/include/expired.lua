-- Holders whose lease has ended without a word of theirs: the next client that comes writes that into the log. Never an
-- error.
-- @include info
-- @include log

-- Of more the last ones to expire are enough.
local EXPIRED_AT_ONCE = 200

-- `entries`: of shared:K, each with its score behind it, the first to expire first.
local function log_expired_entries(k, entries)
  for i = math.max(#entries - 2 * EXPIRED_AT_ONCE, 0) + 1, #entries, 2 do
    local info = decode_info(call('HGET', k.info, parse_claim(entries[i]) or ''))
    log_for_holder(k, entries[i], info, 'expired', tonumber(entries[i + 1]), '')
  end
end

-- K is free.
local function log_expired(k)
  local claim = call('HGET', k.info, 'claim')
  if claim then
    log_for_holder(k, claim, read_info(k, parse_claim(claim)), 'expired', lease_end(k.info), '')
  else
    log_expired_entries(k, call('ZRANGEBYSCORE', k.shared, '-inf', int_string(NOW_MS), 'WITHSCORES'))
  end
end

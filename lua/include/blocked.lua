-- Replies that explain why a lock was not granted.
-- @include holders
-- @include protocol
-- @include queue

-- Describes a holder of K: name ('' = the lock is free), ms until the lock expires (-1 = never), ms
-- held (-1 = unknown), the number of other holders, then this server's run_id, our arrival stamp
-- (-1 = not queued), the length of the queue, the longest bound of any lease (see marker.lua), and
-- field, value, ... of the holder's record.
local function holder_fields(k, our_place)
  local queued = int_string(call('ZCOUNT', k.queue, '-inf', '+inf'))
  if not current(k) then
    return '', '0', '-1', '0', RUN_ID, our_place, queued, longest_bound
  end
  local holder, info = holder_of(k)
  local since = info and tonumber(info.since)
  local others = max_holders(current(k)) and math.max(count_live(k) - 1, 0) or 0
  local fields = {
    string.sub(holder, 1, 100),
    int_string(expires_in(k, MODE)),
    since and int_string(math.max(NOW_MS - since, 0)) or '-1',
    int_string(others),
    RUN_ID,
    our_place,
    queued,
    longest_bound,
  }
  for field, value in pairs(info or {}) do
    fields[#fields + 1] = field
    fields[#fields + 1] = tostring(value)
  end
  return unpack(fields)
end

-- Returns 'blocked', the index of the key (from 0), our position in its queue (0 = next, -1 = not
-- queued), and the holder's fields.
local function blocked_by(i, position)
  local our_place = position and int_string(our_stamp()) or '-1'
  return { 'blocked', int_string(i - 1), int_string(position or -1), holder_fields(LOCKS[i], our_place) }
end

-- Returns a reply if the holder uses K in a way that conflicts with ours.
local function mismatch(k)
  local _, info = holder_of(k)
  local refusal = other_protocol(info)
  if refusal then
    return refusal
  end
  if info and info.nodes ~= SERVERS then
    return { 'different_server_count', info.nodes }
  end
  local value = current(k)
  local is_redlock = parse_claim(value) or max_holders(value)
  if value ~= MODE and is_redlock and (slots_of(value) or slots_of(MODE)) then
    return { 'slots_mismatch', int_string(slots_of(value) or 0) }
  end
end

-- Whether one of these waiters, which we run under, holds K. One whose command has ended does not
-- count: its lock only waits for --min-hold to be over.
local function is_below_ancestor(k, ancestors)
  for ancestor in string.gmatch(ancestors, '%S+') do
    if claim_of(k, ancestor) then
      local info = read_info(k, ancestor)
      if not (info and info.ended) then
        return true
      end
    end
  end
end

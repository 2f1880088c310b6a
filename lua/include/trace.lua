-- What is left of a grant that was given back by its token, or broken, for clients that come with the token later: who did
-- it, as JSON in the place of the waiter's tombstone.
-- @include server

-- An hour.
local TRACE_TTL_MS = '3600000'

-- `who` has the fields of the client that ended the grant. For people only: never a reason to fail.
local function leave_trace(tombstone, how, who)
  local fields = { how = how }
  for field, value in pairs(who) do
    fields[field] = value
  end
  redis.pcall('SET', tombstone, cjson.encode(fields), 'PX', TRACE_TTL_MS)
end

-- {'ended', how, field, value, ...} if our grant has left a trace.
local function trace_reply()
  local ok, fields = pcall(cjson.decode, call('GET', TOMBSTONE) or '')
  if not ok or type(fields) ~= 'table' then
    return
  end
  local reply = { 'ended', tostring(fields.how) }
  for field, value in pairs(fields) do
    reply[#reply + 1] = field
    reply[#reply + 1] = tostring(value)
  end
  return reply
end

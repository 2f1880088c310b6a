-- The trace of a grant that was released by its token, or broken, for clients that use the token
-- later: the client that ended it, as JSON, at the key of the waiter's tombstone.
-- @include server

-- An hour.
local TRACE_TTL_MS = '3600000'

-- `who` has the fields of the client that ended the grant. They are for people only: a failure is
-- ignored.
local function leave_trace(tombstone, how, who)
  local fields = { how = how }
  for field, value in pairs(who) do
    fields[field] = value
  end
  redis.pcall('SET', tombstone, cjson.encode(fields), 'PX', TRACE_TTL_MS)
end

-- Returns {'ended', how, field, value, ...} if our grant has left a trace.
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

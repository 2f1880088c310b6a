-- What holders tell about themselves, in info:K.
-- @include value

local function decode_info(json)
  local ok, decoded = pcall(cjson.decode, json or '')
  return ok and type(decoded) == 'table' and decoded or nil
end

-- The record of a holder; nil if it is not redlock's, or its record is lost.
local function read_info(k, waiter)
  return waiter and decode_info(call('HGET', k.info, waiter))
end

-- Field of info:K: '<n> <signs>', how many slots are taken, and a sign for each slot from 0 on, '#' if it is taken.
local SLOTS = 'slots'

-- Sets a field of our record. A lost record is not created again: it would never expire.
local function set_info_field(k, info, field, value)
  if info then
    info[field] = value
    call('HSET', k.info, ME, cjson.encode(info))
  end
end

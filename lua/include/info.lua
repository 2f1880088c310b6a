-- The records of holders, in info:K.
-- @include value

local function decode_info(json)
  local ok, decoded = pcall(cjson.decode, json or '')
  return ok and type(decoded) == 'table' and decoded or nil
end

-- The record of a holder; nil if the holder is foreign, or its record was lost.
local function read_info(k, waiter)
  return waiter and decode_info(call('HGET', k.info, waiter))
end

-- Field of info:K: '<n> <map>', the number of slots taken, and a character for each slot from 0 on,
-- '#' if it is taken.
local SLOTS = 'slots'

-- Sets a field of our record. A lost record is not recreated: it would never expire.
local function set_info_field(k, info, field, value)
  if info then
    info[field] = value
    call('HSET', k.info, ME, cjson.encode(info))
  end
end

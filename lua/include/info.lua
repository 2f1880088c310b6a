-- What holders tell about themselves, in info:K.
-- @include value

local function decode_info(json)
  local ok, decoded = pcall(cjson.decode, json or '')
  return ok and type(decoded) == 'table' and decoded or nil
end

-- The info of a holder; nil if it is not redlock's, or its info is lost.
local function read_info(k, waiter)
  if not waiter then
    return
  end
  if is_shared(k) then
    return decode_info(call('HGET', k.info, waiter))
  end
  local flat, info = call('HGETALL', k.info), {}
  for i = 1, #flat, 2 do
    info[flat[i]] = flat[i + 1]
  end
  return parse_claim(info.claim or '') == waiter and info or nil
end

-- Field of info:K: '<n> <signs>', how many slots are taken, and a sign for each slot from 0 on, '#' if it is taken.
local SLOTS = 'slots'

-- Sets a field of our info. Lost info is not created anew: it would never get a time to live.
local function set_info_field(k, info, field, value)
  if not info then
    return
  end
  if not is_shared(k) then
    call('HSET', k.info, field, value)
    return
  end
  info[field] = value
  call('HSET', k.info, ME, cjson.encode(info))
end

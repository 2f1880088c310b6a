-- What holders tell about themselves, in info:K.
-- @include value

-- The info of a holder; nil if it is not redlock's, or its info is lost.
local function read_info(k, waiter)
  if not waiter then
    return
  end
  if max_holders(current(k) or '') then
    local json = call('HGET', k.info, waiter)
    local ok, decoded = pcall(cjson.decode, json or '')
    return ok and type(decoded) == 'table' and decoded or nil
  end
  local flat, info = call('HGETALL', k.info), {}
  for i = 1, #flat, 2 do
    info[flat[i]] = flat[i + 1]
  end
  return parse_claim(info.claim or '') == waiter and info or nil
end

-- Field of info:K: '<n> <signs>', how many slots are taken, and a sign for each slot from 0 on, '#' if it is taken.
local SLOTS = 'slots'

-- Writes the info of a grant: its details, and what the client tells about itself, which is field, value, ... in ARGV
-- from `first` on.
local function write_holder_info(k, info, first)
  info.nodes = SERVERS
  if MODE == '' then
    call('HSET', k.info, 'claim', info.claim, 'fence', info.fence, 'since', info.since, 'nodes', info.nodes,
      'gate', info.gate, 'stamp', info.stamp, unpack(ARGV, first))
    return
  end
  for i = first, #ARGV, 2 do
    info[ARGV[i]] = ARGV[i + 1]
  end
  call('HSET', k.info, ME, cjson.encode(info))
end

-- Sets a field of our info. Lost info is not created anew: it would never get a time to live.
local function set_info_field(k, info, field, value)
  if not info then
    return
  end
  if MODE == '' then
    call('HSET', k.info, field, value)
    return
  end
  info[field] = value
  call('HSET', k.info, ME, cjson.encode(info))
end

-- The newest of the requests that supersede each other, in newest:K. It outlives the request, so that an older waiter that
-- was stopped in the meantime does not come after it.
-- @include server
-- @include constants

-- What the newest one has told: waiter, name in the queue, stamp, and who it is; nil if there was none, or if our request
-- is of another kind.
local function newest(k)
  local json = has(FLAGS, SUPERSEDES) and call('GET', k.newest)
  if not json then
    return
  end
  local ok, request = pcall(cjson.decode, json)
  return ok and type(request) == 'table' and tonumber(request.stamp) and request or nil
end

-- The stamp of the newest request of another waiter; 0 if there is none.
local function newest_stamp(k)
  local request = newest(k)
  return request and request.waiter ~= ME and tonumber(request.stamp) or 0
end

-- The newest of the requests that supersede each other, in newest:K. It outlives the request, so
-- that an older waiter that was suspended in the meantime is not served after it.
-- @include server
-- @include constants

-- The newest request: waiter, name in the queue, stamp, the run_id of the server that assigned it,
-- when it arrived by the clock of this server, and the client's fields; nil if there is none, or if
-- our request does not supersede others.
local function newest(k)
  local json = has(FLAGS, SUPERSEDES) and call('GET', k.newest)
  if not json then
    return
  end
  local ok, request = pcall(cjson.decode, json)
  return ok and type(request) == 'table' and tonumber(request.stamp) and request or nil
end

-- The stamp of the newest request of another waiter; 0 if there is none, or another server assigned
-- it.
local function newest_stamp(k)
  local request = newest(k)
  return request and request.waiter ~= ME and request.clock == RUN_ID and tonumber(request.stamp) or 0
end

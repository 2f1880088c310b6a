-- Commands, errors, the clock and the identity of this server.
-- @include request

-- From Redis 7 on an error may carry fields: name the command that was refused, since the server's own text does not.
-- Older servers keep their plain text.
local call = redis.call
if redis.REDIS_VERSION_NUM then
  call = function(command, key, ...)
    local reply = redis.pcall(command, key, ...)
    if type(reply) == 'table' and reply.err then
      error({ err = reply.err .. ' [' .. command .. ' ' .. (key or '') .. ']' })
    end
    return reply
  end
end

-- Raises a caught error again. From Redis 7 on pcall() turns it into plain text, which the server would send
-- without its error code.
local function fail(why)
  error(redis.REDIS_VERSION_NUM and type(why) == 'string' and { err = why } or why, 0)
end

-- The server's clock, never a client's. It stands still during a script.
local now
local function now_us()
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return now
end

local function now_ms()
  return math.floor(now_us() / 1000)
end

local function is_replica()
  return not string.find(call('INFO', 'replication'), 'role:master', 1, true)
end

local id
local function server_id()
  id = id or string.match(call('INFO', 'server'), 'run_id:(%x+)')
  return id
end

-- Identifies this server for a client that counts votes. With one server there is no vote, and INFO is slow.
local function run_id()
  return SERVERS == '1' and '' or server_id()
end

-- For how many ms this server must not vote yet; for how long it has been known; the longest quarantine that any client
-- came with. A server proves that it has kept its data by a marker with its run_id. If the marker is missing (fresh,
-- flushed, restarted empty) or names another run_id (restarted, promoted, restored), the quarantine starts anew. The
-- longest quarantine counts for every client: the lease that was forgotten may have been another client's.
local function quarantine_left(quarantine)
  if quarantine == 0 and SERVERS == '1' then
    return 0, 0, 0
  end
  local marked, since, longest = string.match(call('GET', MARKER) or '', '^(%x+) (%d+) (%d+)$')
  since, longest = tonumber(since), tonumber(longest or 0)
  -- A time in the future is from before the clock was set back.
  if marked ~= server_id() or since > now_ms() or longest < quarantine then
    since = marked == server_id() and math.min(since, now_ms()) or now_ms()
    longest = math.max(longest, quarantine)
    call('SET', MARKER, table.concat({ server_id(), int_string(since), int_string(longest) }, ' '))
  end
  local known_for = now_ms() - since
  return longest > 0 and longest + 1000 - known_for or 0, known_for, longest
end

-- For a key that was just created: if PEXPIRE is refused, the key is deleted again.
local function expire_or_delete(key, ms)
  local reply = redis.pcall('PEXPIRE', key, ms)
  if type(reply) == 'table' and reply.err then
    redis.pcall('DEL', key)
    call('PEXPIRE', key, ms)
  end
end

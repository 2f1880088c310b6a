-- Commands, errors, the clock and the identity of this server.
-- @include request

-- From Redis 7 on an error may carry fields: name the command that was refused, since the server's own text does not.
-- Older servers keep their plain text.
local call, try, type_of = redis.call, redis.pcall, type
if redis.REDIS_VERSION_NUM then
  call = function(command, key, ...)
    local reply = try(command, key, ...)
    if type_of(reply) == 'table' and reply.err then
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

-- The server's clock, never a client's.
local TIME = redis.call('TIME')
local NOW_US = TIME[1] * 1000000 + TIME[2]

local NOW_MS = math.floor(NOW_US / 1000)

-- The arrival stamp that the client knows, or else now. One from the future counts as now: the clock of the server that
-- gave it is ahead.
local FIRST_STAMP = STAMP and STAMP < NOW_US + 1000000 and STAMP or NOW_US

local REPLICATION = redis.pcall('INFO', 'replication')
REPLICATION = type(REPLICATION) == 'string' and REPLICATION or ''

-- A server that does not offer INFO is taken for a primary: a replica refuses to be written to, unless it was made
-- writable.
local IS_REPLICA = string.find(REPLICATION, 'role:slave', 1, true) ~= nil

-- Of the history of this server's data: a new one each time it starts as a master, or becomes one.
local REPLICATION_ID = string.match(REPLICATION, 'master_replid:(%x+)') or ''

-- The run_id. The marker tells it, if it was written in the same history: no other master has that ID, but replicas do. INFO
-- is slow.
local function server_id(marked)
  local id, history = string.match(marked, '^(%x+)%.(%x+) ')
  return id and history == REPLICATION_ID and not IS_REPLICA and id or string.match(call('INFO', 'server'), 'run_id:(%x+)')
end

-- Identifies this server for a client that counts votes. With one server there is no vote.
local RUN_ID, MARKED = '', nil
if SERVERS ~= '1' then
  -- @include server
  MARKED = call('GET', MARKER) or ''
  RUN_ID = server_id(MARKED)
end

-- Identifies a time in which this server has been a master without a break: its run_id, and its replication ID. A server
-- that was demoted, never got the data of the new master, and is promoted again has the run_id, and the data, of before.
local function reign(run_id)
  return run_id .. '.' .. REPLICATION_ID
end

-- A single server without a quarantine votes at once, whatever it may have forgotten. One that was given as a cluster
-- is asked whether it is: the marker of a slot ends with its tag.
local NEEDS_MARKER = SERVERS ~= '1' or string.sub(MARKER, -1) == '}'

-- On a cluster: since when this node is known to have kept its data and its slots, by the shard marker: its reign, the
-- time, its ID, epoch and slots. It is lost with the data, and what it says changes with each slot that comes or goes.
-- Where there is none it is written, unless this is but a look. Elsewhere, and if anything is in doubt: since now.
-- With 'check' only whether it is a cluster at all.
-- Its functions are created only when they are needed: few requests come here.
local function shard_known_since(purpose, our_reign)
  -- CLUSTER with these arguments; nothing if it is not told. A server that was given as a cluster must be part of one:
  -- clients that give it as what it is use other names for the same locks.
  local function ask_cluster(...)
    local reply = redis.pcall('CLUSTER', ...)
    if type(reply) ~= 'table' or not reply.err then
      return reply
    end
    if string.find(reply.err, 'cluster support disabled', 1, true) then
      fail(reply.err)
    end
  end
  -- The slots that this node has, and who it is as their owner. Its epoch is a new one when it has taken a slot over from
  -- another master. Nothing if that is not told, or while a slot is on its way from or to it.
  local function shard()
    for line in string.gmatch(ask_cluster('NODES') or '', '[^\n]+') do
      local id, flags, epoch, slots = string.match(line, '^(%x+) %S+ (%S+) %S+ %d+ %d+ (%d+) %S+ ([%d%- ]+)$')
      if id and string.find(flags, 'myself,master', 1, true) then
        return table.concat({ id, epoch, slots }, ' '), slots
      end
    end
  end
  -- The shard marker is in the first slot that a number is in, and this node has. A node with a handful of slots may have
  -- none among so many numbers; no script is to search for long.
  local function marker_in(slots)
    for tag = 0, 999 do
      local name = string.gsub(MARKER, '%-node:{%d+}$', '-shard:{' .. tag .. '}')
      local slot = ask_cluster('KEYSLOT', name)
      for first, last in string.gmatch(slot and slots or '', '(%d+)%-?(%d*)') do
        if slot >= tonumber(first) and slot <= tonumber(last ~= '' and last or first) then
          return name
        end
      end
      if not slot then
        return nil
      end
    end
  end
  if string.sub(MARKER, -1) ~= '}' then
    return NOW_MS
  elseif purpose == 'check' then
    return ask_cluster('KEYSLOT', MARKER)
  end
  local owner, slots = shard()
  local name = owner and marker_in(slots)
  local marked = name and redis.pcall('GET', name)
  if not name or type(marked) == 'table' then
    return NOW_MS
  end
  local known, since, known_owner = string.match(marked or '', '^(%S+) (%d+) (.+)$')
  if known == our_reign and known_owner == owner and tonumber(since) <= NOW_MS then
    return tonumber(since)
  end
  if purpose ~= 'look' then
    redis.pcall('SET', name, table.concat({ our_reign, int_string(NOW_MS), owner }, ' '))
  end
  return NOW_MS
end

-- For how many ms this server must not vote yet; for how long it has been known; the longest quarantine that any client
-- came with. A server proves that it has kept its data by a marker with its reign. If the marker is missing (fresh,
-- flushed, restarted empty) or names another reign (restarted, promoted, restored), the quarantine starts anew, on a
-- cluster unless the shard marker proves the same. The longest quarantine counts for every client: the lease that was
-- forgotten may have been another client's.
local function quarantine_left(quarantine)
  if quarantine == 0 and SERVERS == '1' then
    shard_known_since('check')
    return 0, 0, 0
  end
  local text = MARKED or call('GET', MARKER) or ''
  local our_reign = reign(RUN_ID == '' and server_id(text) or RUN_ID)
  local marked, since, longest = string.match(text, '^(%S+) (%d+) (%d+)$')
  since, longest = tonumber(since), tonumber(longest or 0)
  -- A time in the future is from before the clock was set back.
  if marked ~= our_reign or since > NOW_MS or longest < quarantine then
    since = marked == our_reign and math.min(since, NOW_MS) or shard_known_since('use', our_reign)
    longest = math.max(longest, quarantine)
    call('SET', MARKER, table.concat({ our_reign, int_string(since), int_string(longest) }, ' '))
  end
  local known_for = NOW_MS - since
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

-- The clock and the identity of this server.
-- @include claim

-- The server's clock, never a client's.
local TIME = redis.call('TIME')
local NOW_US = TIME[1] * 1000000 + TIME[2]

local NOW_MS = math.floor(NOW_US / 1000)

local STAMP = tonumber(string.match(ARGV[6], '^%d+'))

-- The arrival stamp that the client knows, or else the present time. A stamp from the future counts
-- as now: the clock of the server that assigned it is ahead.
local FIRST_STAMP = STAMP and STAMP < NOW_US + 1000000 and STAMP or NOW_US

local REPLICATION = redis.pcall('INFO', 'replication')
REPLICATION = type(REPLICATION) == 'string' and REPLICATION or ''

-- A server without INFO is taken for a master: a replica refuses writes, unless it was made
-- writable.
local IS_REPLICA = string.find(REPLICATION, 'role:slave', 1, true) ~= nil

-- The ID of this server's data history: a new one each time it starts as a master, or becomes one.
local REPLICATION_ID = string.match(REPLICATION, 'master_replid:(%x+)') or ''

-- A master that was never a replica has no second ID.
local HAS_NO_SECOND_ID = string.find(REPLICATION, 'master_replid2:0+%s') ~= nil

-- The run_id. The marker has it, if it was written in the same history: no other master has that
-- ID, but replicas do. INFO is slow.
local function server_id(marked)
  local id, history = string.match(marked, '^(%x+)%.(%x+) ')
  return id and history == REPLICATION_ID and not IS_REPLICA and id or string.match(call('INFO', 'server'), 'run_id:(%x+)')
end

-- Identifies this server to a client that counts votes. With one server there is no vote.
local RUN_ID, MARKED = '', nil
if SERVERS ~= '1' then
  MARKED = call('GET', MARKER) or ''
  RUN_ID = server_id(MARKED)
end

-- A single server without a quarantine votes at once, even if it has lost data. A server that was
-- configured as a cluster must prove that it is one: the marker of a slot ends with its tag.
local NEEDS_MARKER = SERVERS ~= '1' or string.sub(MARKER, -1) == '}'

-- The value at lock:K, or false if the lock is free. Read once.
local function current(k)
  if k.value == nil then
    k.value = call('GET', k.lock)
  end
  return k.value
end

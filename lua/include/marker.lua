-- The marker of this server: proof that it has kept its data, or else how long it must not vote.
-- @include server

-- Identifies a period in which this server has been a master without interruption, by its run_id
-- and replication ID. A server that was demoted, never received the new master's data, and is
-- promoted again has its old run_id and its old data.
local function reign(run_id)
  return run_id .. '.' .. REPLICATION_ID
end

-- On a cluster: since when this node has kept its data and its slots, according to the shard
-- marker. The marker names the node's reign, the time, and its ID, epoch and slots. It is lost with
-- the data, and no longer matches once a slot has moved. A missing marker is written, unless the
-- purpose is 'read'. Returns the present time if this is not a cluster, or if anything is in doubt.
-- The purpose 'check' only checks that the server is part of a cluster. The functions are inside,
-- because few requests need them.
local function shard_known_since(purpose, our_reign)
  -- Runs CLUSTER with these arguments; returns nothing if it is refused. It is an error if a server
  -- that was configured as a cluster is not part of one: clients that configure it as a single
  -- server use other names for the same locks.
  local function call_cluster(...)
    local reply = redis.pcall('CLUSTER', ...)
    if type(reply) ~= 'table' or not reply.err then
      return reply
    end
    if string.find(reply.err, 'cluster support disabled', 1, true) then
      fail(reply.err)
    end
  end
  -- This node's ID, epoch and slots as one text, and the slots alone. The epoch changes when the
  -- node takes over a slot from another master. Returns nothing if these are unknown, or while a
  -- slot is being moved from or to this node.
  local function shard()
    for line in string.gmatch(call_cluster('NODES') or '', '[^\n]+') do
      local id, flags, epoch, slots = string.match(line, '^(%x+) %S+ (%S+) %S+ %d+ %d+ (%d+) %S+ ([%d%- ]+)$')
      if id and string.find(flags, 'myself,master', 1, true) then
        return table.concat({ id, epoch, slots }, ' '), slots
      end
    end
  end
  -- The name of the shard marker: the first numbered tag whose slot is on this node. A node with a
  -- handful of slots may have none of these tags; the bound keeps the script short.
  local function marker_in(slots)
    for tag = 0, 999 do
      local name = string.gsub(MARKER, '%-node:{%d+}$', '-shard:{' .. tag .. '}')
      local slot = call_cluster('KEYSLOT', name)
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
    return call_cluster('KEYSLOT', MARKER)
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
  if purpose ~= 'read' then
    redis.pcall('SET', name, table.concat({ our_reign, int_string(NOW_MS), owner }, ' '))
  end
  return NOW_MS
end

-- Returns the ms for which this server must not vote yet, the ms for which it has been known, and
-- the longest quarantine that any client has requested. A marker with its reign proves that a
-- server has kept its data. If the marker is missing (fresh, flushed, restarted empty) or names
-- another reign (restarted, promoted, restored), the quarantine restarts, unless the shard marker
-- of a cluster proves the same. The longest quarantine applies to every client: the lost lease may
-- have been any client's.
local function quarantine_left(quarantine)
  if quarantine == 0 and SERVERS == '1' then
    shard_known_since('check')
    return 0, 0, 0
  end
  local text = MARKED or call('GET', MARKER) or ''
  local our_reign = reign(RUN_ID == '' and server_id(text) or RUN_ID)
  local marked, since, longest = string.match(text, '^(%S+) (%d+) (%d+)$')
  since, longest = tonumber(since), tonumber(longest or 0)
  -- A time in the future was written before the clock was set back.
  if marked ~= our_reign or since > NOW_MS or longest < quarantine then
    since = marked == our_reign and math.min(since, NOW_MS) or shard_known_since('write', our_reign)
    longest = math.max(longest, quarantine)
    call('SET', MARKER, table.concat({ our_reign, int_string(since), int_string(longest) }, ' '))
  end
  local known_for = NOW_MS - since
  return longest > 0 and longest + 1000 - known_for or 0, known_for, longest
end

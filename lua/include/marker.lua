-- The marker of this server: proof that it has kept its data, or else how long it must not vote.
-- @include server
-- @include constants

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

-- Whether the marker names our reign. A master whose backlog is freed, or that gets its first
-- replica, has a new replication ID and no second one; a promoted server has its old ID as the
-- second. The former has lost nothing.
local function is_our_reign(marked, our_reign)
  return marked == our_reign
    or HAS_NO_SECOND_ID and marked and string.match(marked, '^(%x+)%.') == string.match(our_reign, '^(%x+)%.')
end

-- Returns the ms for which this server must not vote yet, the ms for which it has been known, and
-- the longest bound in force: no lease that was granted by any client is longer.
--
-- A marker with its reign proves that a server has kept its data. If the marker is missing (fresh,
-- flushed, restarted empty) or names another reign (restarted, promoted, restored), the quarantine
-- restarts, unless the shard marker of a cluster proves the same. It lasts for the client's
-- quarantine, or for the longest bound in force: the lost lease may have been any client's. A bound
-- is in force for a little longer than the leases that need it.
--
-- A request for a lease of `ttl` ms raises the bound, for a little longer than this lease can last.
-- No longer lease was granted before, so a server that has outlasted the old bound, and the usual
-- leases, which need no bound, stays in good standing: its marker is backdated. On any other server
-- nothing is raised, and its reply is no acknowledgement.
local function quarantine_left(quarantine, ttl)
  if quarantine == 0 and SERVERS == '1' then
    shard_known_since('check')
    return 0, 0, 0
  end
  local text = MARKED or call('GET', MARKER) or ''
  local our_reign = reign(RUN_ID == '' and server_id(text) or RUN_ID)
  local marked, since, longest, ends = string.match(text, '^(%S+) (%d+) (%d+) ?(%d*)$')
  longest = (tonumber(ends) or 0) >= NOW_MS and tonumber(longest) or 0
  -- A time in the future was written before the clock was set back.
  local is_known, stored = is_our_reign(marked, our_reign), tonumber(since)
  since = is_known and math.min(stored, NOW_MS) or shard_known_since('write', our_reign)
  -- What was longer than usual is over when its bound is forgotten.
  local needed = longest > 0 and longest or is_known and math.min(quarantine, USUAL_LEASE_MS) or quarantine
  local left = needed > 0 and needed + 1000 - (NOW_MS - since) or 0
  local bound = needed
  if NOW_MS - since >= math.max(longest, USUAL_LEASE_MS) + 1000 then
    bound = math.max(needed, quarantine, ttl)
    since = math.min(since, NOW_MS - bound - 1000)
  end
  local is_renewed = bound > 0 and (tonumber(ends) or 0) < NOW_MS + bound
  if marked ~= our_reign or since ~= stored or bound > longest or is_renewed then
    local fields = { our_reign, int_string(since), int_string(bound), int_string(NOW_MS + bound * 5 / 4) }
    call('SET', MARKER, table.concat(fields, ' '))
  end
  return left, NOW_MS - since, longest
end

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
    local info = redis.pcall('INFO', 'cluster')
    if type(info) == 'string' and string.find(info, 'cluster_enabled:0', 1, true) then
      fail('ERR cluster support disabled')
    end
    return
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

-- The fields of the marker: since when this server has been known; the longest bound of any lease,
-- until when it is in force, and since when. A bound that is no longer in force is 0.
local function parse_marker(text)
  local marked, since, longest, ends, raised = string.match(text, '^(%S+) (%d+) (%d+) ?(%d*) ?(%d*)$')
  longest = (tonumber(ends) or 0) >= NOW_MS and tonumber(longest) or 0
  -- A time in the future was written before the clock was set back.
  raised = tonumber(raised) or 0
  return marked, tonumber(since), longest, tonumber(ends) or 0, raised <= NOW_MS and raised or 0
end

-- Whether a server that has been known since this time has outlasted every lease that it may have
-- forgotten: the usual ones, and longer ones, which were granted only after their bound was raised.
local function is_in_good_standing(since, longest, raised)
  local has_outlasted_usual = since + USUAL_LEASE_MS + 1000 <= NOW_MS
  return has_outlasted_usual and (since + 1000 <= raised or since + longest + 1000 <= NOW_MS)
end

-- Returns the ms for which this server must not vote yet, the ms for which it has been known, and
-- the longest bound in force, as ms and ms since it was raised: no lease of any client is longer.
--
-- A marker with its reign proves that a server has kept its data. If the marker is missing (fresh,
-- flushed, restarted empty) or names another reign (restarted, promoted, restored), the quarantine
-- restarts, unless the shard marker of a cluster proves the same. It lasts for the client's
-- quarantine, or for the longest bound in force: the lost lease may have been any client's. A bound
-- is in force for a little longer than the leases that need it.
--
-- A request raises the bound to its `lease` in ms, for a little longer than this lease can last. No
-- longer lease was granted before, so a server that is in good standing stays so. On any other server
-- nothing is raised, and its reply is no acknowledgement.
--
-- `first_field`: where the arguments that describe the client begin, if there are any. For people, a
-- second key names the client that asked for the longest bound in force.
local function quarantine_left(quarantine, lease, first_field)
  if quarantine == 0 and SERVERS == '1' then
    shard_known_since('check')
    return 0, 0, '0 0'
  end
  local text = MARKED or call('GET', MARKER) or ''
  local our_reign = reign(RUN_ID == '' and server_id(text) or RUN_ID)
  local marked, stored, longest, ends, raised = parse_marker(text)
  local is_known = is_our_reign(marked, our_reign)
  local since = is_known and math.min(stored, NOW_MS) or shard_known_since('write', our_reign)
  -- Longer leases have expired when their bound is forgotten.
  local needed = longest > 0 and longest or is_known and math.min(quarantine, USUAL_LEASE_MS) or quarantine
  -- Without a marker it is unknown which leases were granted before.
  local is_standing = is_in_good_standing(since, is_known and longest or needed, is_known and raised or 0)
  local ours = math.max(quarantine, lease)
  local left = needed > 0 and not is_standing and needed + 1000 - (NOW_MS - since) or 0
  local bound = is_standing and math.max(needed, ours) or needed
  if longest <= USUAL_LEASE_MS then
    raised = NOW_MS
  elseif bound > longest then
    -- Earlier leases were no longer than the last bound. What was forgotten before this has expired.
    raised = math.max(raised, NOW_MS - longest)
  end
  -- A usual lease does not prolong a longer bound.
  local is_prolonged = bound > 0 and ends < NOW_MS + bound and (ours > USUAL_LEASE_MS or bound <= USUAL_LEASE_MS)
  raised = bound > USUAL_LEASE_MS and raised or 0
  if marked ~= our_reign or since ~= stored or bound > longest or is_prolonged then
    ends = is_prolonged and NOW_MS + bound * 5 / 4 or ends
    local times = { int_string(since), int_string(bound), int_string(ends), int_string(raised) }
    call('SET', MARKER, our_reign .. ' ' .. table.concat(times, ' '))
    if raised > 0 then
      local function name_client()
        local client, lasts_ms = {}, int_string(ends - NOW_MS)
        for i = first_field or #ARGV, #ARGV - 1, 2 do
          client[ARGV[i]] = ARGV[i + 1]
        end
        if client.user and ours >= bound then
          call('SET', MARKER .. '-by', client.user .. '@' .. (client.host or ''), 'PX', lasts_ms)
        else
          call('PEXPIRE', MARKER .. '-by', lasts_ms)
        end
      end
      name_client()
    end
  end
  -- A usual lease of ours does not count against other servers, and needs no acknowledgement.
  local reported = quarantine > 0 and bound > USUAL_LEASE_MS and bound or longest
  local raised_ago = raised > 0 and NOW_MS - raised or reported
  return left, NOW_MS - since, int_string(reported) .. ' ' .. int_string(raised_ago)
end

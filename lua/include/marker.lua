-- The marker of this server: whether it has kept its data, and for how long it must not vote.
-- @include server

-- Identifies a time in which this server has been a master without a break: its run_id, and its replication ID. A server
-- that was demoted, never got the data of the new master, and is promoted again has the run_id, and the data, of before.
local function reign(run_id)
  return run_id .. '.' .. REPLICATION_ID
end

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

-- Look at the holders of a lock; mark their claims as broken, or take the lock away at once.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua; for one key only. The claim's waiter is the breaking client
-- ARGV[7] action      'look'; 'mark' = tell the holders, which are to give the lock back; 'unmark' = take back the marks of
--                     this client, which stay if another client has marked the same; 'free' = at once, whatever the
--                     holders do
-- ARGV[8] claims      of the holders that are meant, separated by spaces
-- ARGV[9...]          field, value, ... of the breaking client
--
-- Returns {'holders', run_id, number of slots (0 = none), then for each holder: claim, slot (-1 = none), ms until it expires
-- (-1 = never), ms held (-1 = unknown), its info as JSON, its mark: '', 'new', or 'old' if this client's was
-- there before}; as it is after 'mark' and
-- 'unmark', as it was before 'free'. The claim of another program is 'foreign:' and a digest of its value. Or {'replica'},
-- or {'different_server_count', n}: held as a lock over n servers.
--
-- Atomic, so that what is marked or freed is what was looked at. The token stays, so that the next one is larger. Marking
-- renews nothing and frees nothing but claims that no process holds: of `redlock acquire` without a keeper, and of runs
-- that have ended and that only --min-hold keeps.
--
-- @include expired
-- @include mark
-- @include trace
-- @include share
-- @include turn

local ACTION, FIRST_FIELD = ARGV[7], 9
local k = LOCKS[1]

local meant = {}
for claim in string.gmatch(ARGV[8], '%S+') do
  meant[claim] = true
end

-- A claim without its slot and its mark. The value of another program stands for itself only: a request that comes late
-- must not hit the next one.
local function plain(entry)
  return parse_claim(entry) and string.match(entry, '^[%x-]+%.%d+') or 'foreign:' .. redis.sha1hex(entry)
end

local is_shared_lock = is_shared(k)

local function entries()
  if not is_shared_lock then
    return { current(k) or nil }
  end
  local from, to = live_range()
  return call('ZRANGEBYSCORE', k.shared, from, to)
end

local BREAKER = { notify = ME }
for i = FIRST_FIELD, #ARGV, 2 do
  BREAKER[ARGV[i]] = ARGV[i + 1]
end

local function who()
  return cjson.encode(BREAKER)
end

-- The clients that have marked a claim, by the field `broken` of its record.
local function markers(broken)
  local names = {}
  for name in string.gmatch(tostring(broken.markers or broken.notify or ''), '%S+') do
    names[name] = true
  end
  return names
end

local function set_broken(waiter, info, broken)
  if is_shared_lock then
    info.broken = cjson.encode(broken)
    call('HSET', k.info, waiter, cjson.encode(info))
  else
    call('HSET', k.info, 'broken', cjson.encode(broken))
  end
end

-- Changes the claim, or the entry, of a holder and the field `broken` of its record; `broken` = '' for none. If a command is
-- refused, the holder still has its claim.
local function replace(entry, new, info, broken)
  local waiter = parse_claim(entry)
  if entry == current(k) then
    if info and broken ~= '' then
      call('HSET', k.info, 'broken', broken)
    else
      call('HDEL', k.info, 'broken')
    end
    call('SET', k.lock, new, 'KEEPTTL')
    k.value = new
    return
  end
  local until_ms = call('ZSCORE', k.shared, entry)
  if info then
    call('HSET', k.info, waiter, cjson.encode(info)) -- is it permitted?
  end
  call('ZREM', k.shared, '') -- and this?
  call('ZADD', k.shared, until_ms, new)
  call('ZREM', k.shared, entry)
  if info then
    info.claim, info.broken = new, broken ~= '' and broken or nil
    call('HSET', k.info, waiter, cjson.encode(info))
  end
end

-- Makes this client one of those that have marked the claim: the others may take their marks back. Returns whether it is
-- new among them. Of a mark whose record was lost nothing is known, and nobody takes it back.
local function join_marks(waiter, info)
  local broken = info and decode_info(info.broken)
  if not broken or markers(broken)[ME] then
    return false
  end
  broken.markers = (broken.markers or broken.notify or '') .. ' ' .. ME
  set_broken(waiter, info, broken)
  return true
end

-- Whether the mark stays, since others have made it, too.
local function leave_marks(waiter, info)
  local broken = decode_info(info.broken)
  local others = {}
  for marker in pairs(markers(broken)) do
    others[#others + 1] = marker ~= ME and marker or nil
  end
  if #others == 0 then
    return false
  end
  broken.markers, broken.notify = table.concat(others, ' '), others[1]
  set_broken(waiter, info, broken)
  return true
end

-- What the holder reads when it wakes: it has been broken, and by whom, even if nothing of its claim is left.
local function tell(entry)
  local list = NOTIFY .. parse_claim(entry)
  -- A command that takes no memory comes first: a server that is out of memory lets such a script go on.
  call('PEXPIRE', list, WAKEUP_TTL_MS)
  call('RPUSH', list, plain(entry) .. ' ' .. who())
  expire_or_delete(list, WAKEUP_TTL_MS)
end

-- The holder may not be there any more to write down how its run ended.
local function note_end(entry, info)
  if info and not info.ended then
    leave_trace(string.sub(TOMBSTONE, 1, -#ME - 1) .. parse_claim(entry), 'broken', BREAKER)
  end
  log_for_holder(k, entry, info, 'broken', NOW_MS, who())
end

local function free(entry)
  if entry == current(k) then
    call('DEL', k.lock, k.shared, k.info)
    k.value = false
  else
    remove_entry(k, entry)
  end
end

-- Returns what stands for the holder afterwards, if it is still there, and whether this client has marked it just now.
local function act_on(entry, info)
  local waiter = parse_claim(entry)
  if ACTION == 'free' and meant[plain(entry)] then
    if waiter then
      tell(entry)
      note_end(entry, info)
    end
    free(entry)
  elseif ACTION == 'mark' and waiter and meant[plain(entry)] then
    if info and info.ended then
      free(entry)
    elseif info and info.keeper == 'none' then
      -- No process holds it: there is nothing to stop, and nothing to wait for.
      note_end(entry, info)
      free(entry)
    elseif not is_marked(entry) then
      tell(entry)
      replace(entry, entry .. MARK, info, who())
      return entry .. MARK, true
    else
      return entry, join_marks(waiter, info)
    end
  elseif ACTION == 'unmark' and meant[plain(entry)] and is_marked(entry) and markers(broken_by(k, waiter))[ME]
    and not leave_marks(waiter, info) then
    push_wakeup(waiter) -- to look again
    replace(entry, string.sub(entry, 1, -2), info, '')
    return string.sub(entry, 1, -2)
  end
  return entry
end

if IS_REPLICA then
  return { 'replica' }
end
local _, held_with = unpack(current(k) and { holder_of(k) } or {})
if held_with and held_with.nodes and held_with.nodes ~= SERVERS then
  return { 'different_server_count', held_with.nodes }
end
local reply = { 'holders', RUN_ID, int_string(slots_of(current(k) or '') or 0) }
for _, entry in ipairs(entries()) do
  local waiter = parse_claim(entry)
  local info = read_info(k, waiter)
  local since = info and tonumber(info.since)
  local until_ms = is_shared_lock and call('ZSCORE', k.shared, entry)
  local left = until_ms == 'inf' and -1 or until_ms and until_ms - NOW_MS or call('PTTL', k.lock)
  local now_there, is_new = act_on(entry, info)
  local is_broken = waiter and is_marked(now_there)
  for _, field in ipairs({
    plain(entry),
    string.match(entry, '/(%d+)') or '-1',
    int_string(left),
    since and int_string(math.max(NOW_MS - since, 0)) or '-1',
    cjson.encode(is_broken and read_info(k, waiter) or info or {}),
    is_broken and (is_new and 'new' or 'old') or '',
  }) do
    reply[#reply + 1] = field
  end
end
if ACTION == 'free' or ACTION == 'mark' then
  pcall(wake_next, k) -- what is done is done; waiters come by themselves, only later
end
return reply

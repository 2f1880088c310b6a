-- Mark the claims of a lock's holders as broken, take such marks back, or free the lock at once.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua; for one key only. The claim's waiter is the breaking client
-- ARGV[7] action      'mark' = the holders must release the lock; 'unmark' = take back the marks of this client, which stay
--                     if another client has marked the same claims; 'free' = at once, whatever the holders do
-- ARGV[8] claims      of the holders that are meant, separated by spaces; for a foreign value 'foreign:' and its digest
-- ARGV[9...]          field, value, ... of the breaking client
--
-- Returns {'holders', run_id, then for each holder: its claim, or the name of the foreign value; '' = not marked, 'new' =
-- marked, and not by this client before, 'old' = this client had marked it, 'freed' = freed by this call}; or {'replica'},
-- or {'different_server_count', n}: held as a lock over n servers.
--
-- Atomic, so that what is marked or freed is what was compared. The token stays, so that the next one is larger. Marking
-- renews nothing and frees only claims that no process holds: of `redlock acquire` without a keeper, and of runs that have
-- ended and that only --min-hold keeps.
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

-- A claim without its slot and its mark. The value of another program stands for itself only: a late request must not hit
-- the next one.
local function plain(entry)
  return parse_claim(entry) and string.match(entry, '^[%x-]+%.%d+') or 'foreign:' .. redis.sha1hex(entry)
end

local function entries()
  if is_shared(k) then
    local from, to = live_range()
    local live = call('ZRANGEBYSCORE', k.shared, from, to)
    if #live > 0 then
      return live
    end
  end
  return { current(k) or nil }
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

-- Writes a holder's record. `broken`: its field of that name; nil for none.
local function set_broken(waiter, info, broken)
  info.broken = broken and cjson.encode(broken)
  call('HSET', k.info, waiter, cjson.encode(info))
end

-- Changes the claim, or the entry, of a holder and the field `broken` of its record. If a command is refused, the holder
-- still has its claim.
local function replace(entry, new, info, broken)
  local waiter = parse_claim(entry)
  if entry == current(k) then
    if info then
      set_broken(waiter, info, broken)
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
    info.claim = new
    set_broken(waiter, info, broken)
  end
end

-- Adds this client to those that have marked the claim, so that the mark stays if another one takes its own back. Returns
-- whether it is new among them. If the record of the mark was lost, no client takes it back.
local function join_marks(waiter, info)
  local broken = info and decode_info(info.broken)
  if not broken or markers(broken)[ME] then
    return false
  end
  broken.markers = (broken.markers or broken.notify or '') .. ' ' .. ME
  set_broken(waiter, info, broken)
  return true
end

-- Returns whether the mark stays, since other clients have made it as well.
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

-- Pushes to the holder's list that it was broken, and by whom: it reads this even if nothing of its claim is left.
local function notify_holder(entry)
  local list = NOTIFY .. parse_claim(entry)
  -- A command that takes no memory comes first: a server that is out of memory lets such a script go on.
  call('PEXPIRE', list, WAKEUP_TTL_MS)
  call('RPUSH', list, plain(entry) .. ' ' .. who())
  expire_or_delete(list, WAKEUP_TTL_MS)
end

-- The holder may no longer be there to log how its run ended.
local function log_end(entry, info)
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
  return 'freed'
end

local function mark(entry, info)
  local waiter = parse_claim(entry)
  if info and info.ended then
    return free(entry)
  elseif info and info.keeper == 'none' then
    -- No process holds it: there is nothing to stop, and nothing to wait for.
    log_end(entry, info)
    return free(entry)
  elseif is_marked(entry) then
    return join_marks(waiter, info) and 'new' or 'old'
  end
  notify_holder(entry)
  replace(entry, entry .. MARK, info, BREAKER)
  return 'new'
end

local function unmark(entry, info)
  local waiter = parse_claim(entry)
  if not markers(broken_by(k, waiter))[ME] or leave_marks(waiter, info) then
    return 'old'
  end
  push_wakeup(waiter) -- to look again
  replace(entry, string.sub(entry, 1, -2), info)
  return ''
end

-- Returns what has become of the holder: see the header.
local function act_on(entry, info)
  local waiter, is_meant = parse_claim(entry), meant[plain(entry)]
  if is_meant and ACTION == 'free' then
    if waiter then
      notify_holder(entry)
      log_end(entry, info)
    end
    return free(entry)
  elseif is_meant and waiter and ACTION == 'mark' then
    return mark(entry, info)
  elseif is_meant and waiter and ACTION == 'unmark' and is_marked(entry) then
    return unmark(entry, info)
  end
  return waiter and is_marked(entry) and 'old' or ''
end

if IS_REPLICA then
  return { 'replica' }
end
local _, held_with = unpack(current(k) and { holder_of(k) } or {})
if held_with and held_with.nodes and held_with.nodes ~= SERVERS then
  return { 'different_server_count', held_with.nodes }
end
local reply = { 'holders', RUN_ID }
for _, entry in ipairs(entries()) do
  reply[#reply + 1] = plain(entry)
  reply[#reply + 1] = act_on(entry, read_info(k, parse_claim(entry)))
end
if ACTION ~= 'unmark' then
  pcall(wake_next, k) -- what is done is done; waiters come by themselves, only later
end
return reply

-- Mark the claims of a lock's holders as broken, withdraw such marks, or free the lock at once.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua; one key only. The waiter in the claim is the
--                     breaking client
-- ARGV[7] action      'mark' = the holders must release the lock; 'unmark' = withdraw this client's
--                     marks (a claim that another client has marked as well stays marked);
--                     'free' = free the lock at once, whatever the holders do; 'forget' = delete
--                     the mark of success (include/done.lua), if the lock is free
-- ARGV[8] claims      claims to act on, separated by spaces; 'foreign:' and its digest for a
--                     foreign value
-- ARGV[9...]          field, value, ... of the breaking client
--
-- Returns {'holders', run_id, then for each holder its claim, or the name of the foreign value, and
-- what became of it: '' = not marked, 'new' = marked, and not by this client before, 'old' = marked
-- before, 'freed' = freed by this call}; or {'replica'}, or {'different_server_count', n}: held as
-- a lock over n servers; or {'other_protocol', protocol, version}: see include/protocol.lua.
--
-- Atomic, so that only a claim that was compared is marked or freed. The token stays, so that the
-- next one is larger. Marking renews nothing. It frees only claims of finished runs that only
-- --min-hold keeps.
--
-- @include expired
-- @include mark
-- @include protocol
-- @include trace
-- @include share
-- @include turn

local ACTION, FIRST_FIELD = ARGV[7], 9
local k = LOCKS[1]

local selected = {}
for claim in string.gmatch(ARGV[8], '%S+') do
  selected[claim] = true
end

-- A claim without its slot and its mark. A foreign value is named by its digest: a late request
-- must not free the value that follows it.
local function name_of(entry)
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

local function breaker_json()
  return cjson.encode(BREAKER)
end

-- The clients that have marked a claim, from the field `broken` of its record.
local function markers(broken)
  local names = {}
  for name in string.gmatch(tostring(broken.markers or broken.notify or ''), '%S+') do
    names[name] = true
  end
  return names
end

-- Writes a holder's record with this `broken` field; nil removes the field.
local function set_broken(waiter, info, broken)
  info.broken = broken and cjson.encode(broken)
  call('HSET', k.info, waiter, cjson.encode(info))
end

-- Replaces a holder's claim or entry, and the field `broken` of its record. If a command is
-- refused, the holder keeps its claim.
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
  -- HSET and ZREM change nothing yet: they fail here if they are not permitted.
  if info then
    call('HSET', k.info, waiter, cjson.encode(info))
  end
  call('ZREM', k.shared, '')
  call('ZADD', k.shared, until_ms, new)
  call('ZREM', k.shared, entry)
  if info then
    info.claim = new
    set_broken(waiter, info, broken)
  end
end

-- Adds this client to those that have marked the claim, so that the mark stays if another client
-- withdraws its own. Returns whether it was added. A mark whose record was lost cannot be
-- withdrawn.
local function add_our_mark(waiter, info)
  local broken = info and decode_info(info.broken)
  if not broken or markers(broken)[ME] then
    return false
  end
  broken.markers = (broken.markers or broken.notify or '') .. ' ' .. ME
  set_broken(waiter, info, broken)
  return true
end

-- Withdraws this client's mark. Returns whether the claim stays marked by other clients.
local function withdraw_our_mark(waiter, info)
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

-- Pushes to the holder's list that its claim was broken, and by which client: the holder reads this
-- even if nothing of its claim is left.
local function notify_broken_holder(entry)
  local list = NOTIFY .. parse_claim(entry)
  -- A command that takes no memory comes first: a server that is out of memory lets such a script
  -- continue.
  call('PEXPIRE', list, WAKEUP_TTL_MS)
  call('RPUSH', list, name_of(entry) .. ' ' .. breaker_json())
  expire_or_delete(list, WAKEUP_TTL_MS)
end

-- The holder may have exited, and cannot log how its run ended.
local function log_end(entry, info)
  if info and not info.ended then
    leave_trace(string.sub(TOMBSTONE, 1, -#ME - 1) .. parse_claim(entry), 'broken', BREAKER)
  end
  log_for_holder(k, entry, info, 'broken', NOW_MS, breaker_json())
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
  elseif is_marked(entry) then
    return add_our_mark(waiter, info) and 'new' or 'old'
  end
  notify_broken_holder(entry)
  replace(entry, entry .. MARK, info, BREAKER)
  return 'new'
end

local function unmark(entry, info)
  local waiter = parse_claim(entry)
  if not markers(broken_by(k, waiter))[ME] or withdraw_our_mark(waiter, info) then
    return 'old'
  end
  push_wakeup(waiter) -- to check its claim again
  replace(entry, string.sub(entry, 1, -2), info)
  return ''
end

-- Returns what became of the holder: see the header.
local function act_on(entry, info)
  local waiter, is_selected = parse_claim(entry), selected[name_of(entry)]
  if is_selected and ACTION == 'free' then
    if waiter then
      notify_broken_holder(entry)
      log_end(entry, info)
    end
    return free(entry)
  elseif is_selected and waiter and ACTION == 'mark' then
    return mark(entry, info)
  elseif is_selected and waiter and ACTION == 'unmark' and is_marked(entry) then
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
local conflict = other_protocol(held_with)
if conflict then
  return conflict
end
local reply = { 'holders', RUN_ID }
for _, entry in ipairs(entries()) do
  reply[#reply + 1] = name_of(entry)
  reply[#reply + 1] = act_on(entry, read_info(k, parse_claim(entry)))
end
if ACTION == 'forget' and not current(k) then
  call('DEL', k.done)
end
if ACTION ~= 'unmark' then
  pcall(wake_next, k) -- may fail: waiters retry by themselves, only later
end
return reply

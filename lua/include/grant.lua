-- Writing a grant.
-- @include server

-- How long the record of a holder stays if its lease ends in `ttl` ms: longer than the lease, so
-- that the next client can log that it expired; just as long if this client keeps no history.
local function record_ttl(k, ttl)
  return (k.history or '0') == '0' and ttl or int_string(ttl + LOG_TTL_MS)
end

local function set_lock(k, value, ttl)
  if ttl == '0' then
    call('SET', k.lock, value)
  else
    call('SET', k.lock, value, 'PX', ttl)
  end
  k.value = value
end

-- Writes the record of a holder: the grant's own fields in `info`, and the client's fields in ARGV
-- from `first_field` on.
local function write_record(k, info, first_field)
  info.history = k.history
  for i = first_field, #ARGV, 2 do
    info[ARGV[i]] = ARGV[i + 1]
  end
  call('HSET', k.info, ME, cjson.encode(info))
end

-- For store_grant(). write_share() is the counterpart for shared modes.
local function write_exclusive(k, info, ttl, first_field)
  write_record(k, info, first_field)
  if ttl == '0' then
    call('PERSIST', k.info)
  else
    call('PEXPIRE', k.info, record_ttl(k, ttl))
  end
  set_lock(k, CLAIM, ttl)
end

-- Makes K ours for `ttl` ms ('0' = forever). `info` has the grant's claim, fence, since, gate,
-- stamp and nodes; `write` may add the slot. ARGV from `first_field` on describes the client. If a
-- command is refused half-way, no client is locked out and nothing is left behind: `undo` removes
-- what `write` has added to existing keys.
local function store_grant(k, info, ttl, first_field, write, undo)
  local is_new = not current(k)
  if is_new and not k.is_clean then
    call('DEL', k.shared, k.info) -- left from a lock that has expired, or was deleted
  end
  local ok, why = pcall(write, k, info, ttl, first_field, is_new)
  if not ok then
    if undo then
      undo(k, info)
    end
    if is_new then
      redis.pcall('DEL', k.lock, k.shared, k.info)
    end
    fail(why)
  end
end

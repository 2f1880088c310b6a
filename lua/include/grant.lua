-- Writing a grant down.
-- @include holders

local function set_lock(k, value, ttl)
  if ttl == '0' then
    call('SET', k.lock, value)
  else
    call('SET', k.lock, value, 'PX', ttl)
  end
  k.value = value
end

local function write_grant(k, info, ttl, first_field, is_new)
  if slots_of(MODE) then
    info.slot = take_slot(k)
  end
  info.claim = MODE == '' and CLAIM or CLAIM .. '/' .. (info.slot or '')
  write_holder_info(k, info, first_field)
  if MODE == '' then
    if ttl == '0' then
      call('PERSIST', k.info)
    else
      call('PEXPIRE', k.info, ttl)
    end
    set_lock(k, CLAIM, ttl)
    return
  end
  call('ZADD', k.shared, ttl == '0' and '+inf' or int_string(now_ms() + tonumber(ttl)), info.claim)
  if not is_new then
    live_as_the_last_entry(k)
    return
  end
  set_lock(k, MODE, ttl)
  if ttl ~= '0' then
    call('PEXPIRE', k.shared, ttl)
    call('PEXPIRE', k.info, ttl)
  end
end

-- Makes K ours for `ttl` ms ('0' = forever). `info` has the grant's fence and since; the claim and the slot are added.
-- ARGV from `first_field` on describes the client. If a command is refused half-way, no client is locked out and nothing
-- is left behind.
local function store_grant(k, info, ttl, first_field)
  local is_new = not current(k)
  if is_new and not k.is_untouched then
    call('DEL', k.shared, k.info) -- left by holders whose lock was deleted
  elseif MODE ~= '' and not is_new then
    remove_expired(k) -- before our record is written: an entry of ours may be among them
  end
  local ok, why = pcall(write_grant, k, info, ttl, first_field, is_new)
  if not ok then
    redis.pcall('HDEL', k.info, ME, SLOTS)
    redis.pcall('ZREM', k.shared, info.claim or CLAIM)
    if is_new then
      redis.pcall('DEL', k.lock, k.shared, k.info)
    end
    fail(why)
  end
end

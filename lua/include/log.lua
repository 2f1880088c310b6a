-- The finished runs of K, in log:K, for `redlock history`.
-- @include server
-- @include info

-- Appends an entry, which is field, value, ...; its id is the time at which the run ended. The log keeps about `most`
-- entries. Never an error: a run must end even if the log cannot be written (no permission, no memory, another type at
-- the key, a server that knows no streams).
local function append_to_log(k, most, ...)
  local reply = try('XADD', k.log, 'MAXLEN', '~', most, '*', ...)
  if type(reply) == 'string' and type(try('PEXPIRE', k.log, LOG_TTL_MS)) == 'table' then
    try('DEL', k.log)
  end
end

-- A run that does not end itself: it was broken, or its lease has ended. Nothing of one that has told its end, or wants no
-- history. The time at which it ended is a field, since entries are in the order in which they are written.
local function log_for_holder(k, entry, info, how, ended, by)
  local most = tostring(info and not info.ended and info.history or '0')
  if most == '0' then
    return
  end
  local since, asked = tonumber(info.since), info.nodes == '1' and tonumber(info.stamp)
  local fields = {}
  for _, field in ipairs({ 'host', 'pid', 'user', 'label', 'command', 'job_url' }) do
    fields[#fields + 1] = field
    fields[#fields + 1] = tostring(info[field] or '')
  end
  append_to_log(k, most, 'ended', int_string(ended), 'claim', string.match(entry, '^[%x-]+%.%d+') or '', 'how', how,
    'exit', '', 'signal', '', 'waited', since and asked and int_string(math.max(since - asked / 1000, 0)) or '',
    'held', since and int_string(math.max(ended - since, 0)) or '', 'fence', tostring(info.fence or ''),
    'mode', tostring(info.mode or ''), 'slot', tostring(info.slot or ''), 'by', by, unpack(fields))
end

-- The finished runs of K, in log:K, for `redlock history`.
-- @include request

-- Appends an entry, which is field, value, ...; its id is the time at which the run ended. The log keeps about `most`
-- entries. Never an error: a run must end even if the log cannot be written (no permission, no memory, another type at
-- the key, a server that knows no streams).
local function append_to_log(k, most, ...)
  local reply = try('XADD', k.log, 'MAXLEN', '~', most, '*', ...)
  if type(reply) == 'string' and type(try('PEXPIRE', k.log, LOG_TTL_MS)) == 'table' then
    try('DEL', k.log)
  end
end

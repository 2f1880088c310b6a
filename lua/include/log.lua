-- The finished runs of K, in log:K, for `redlock history`.
-- @include request

-- Appends an entry, given as field, value, ...; its id is the time at which it is written. The log
-- keeps about `max_entries`. Never an error: a run must end even if the log cannot be written (no
-- permission, no memory, a key of another type, a server without streams).
local function append_to_log(k, max_entries, ...)
  local reply = try('XADD', k.log, 'MAXLEN', '~', max_entries, '*', ...)
  if type(reply) == 'string' and type(try('PEXPIRE', k.log, LOG_TTL_MS)) == 'table' then
    try('DEL', k.log)
  end
end

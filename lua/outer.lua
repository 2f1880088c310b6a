-- Report which of the client's outer runs (those that it runs under) hold the locks, and in which
-- mode.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] outer       the claims of those runs, the nearest last
--
-- Returns {'outer', run_id, then for each key: claim, token, slot (0 = none), mode tag ('' =
-- exclusive), and for the lock of `redlock acquire` the ms until it expires (-1 = never), for that
-- of a run ''}, where all five are '' if none of those runs holds the key; or {'replica'}.
--
-- Atomic, so that all keys are read at the same moment. Writes nothing: those runs renew and
-- release.
--
-- @include holders
-- @include mark

local function ms_left(k, entry)
  if not max_holders(current(k)) then
    return call('PTTL', k.lock)
  end
  local until_ms = call('ZSCORE', k.shared, entry)
  return until_ms == 'inf' and -1 or math.max(tonumber(until_ms) - NOW_MS, 0)
end

-- Returns nothing for a run whose command has ended, since its lock only waits for --min-hold to be
-- over, and for a lock that was broken.
local function holds(k, claim)
  local waiter, wanted = parse_claim(claim)
  local attempt, entry = claim_of(k, waiter, true)
  local info = attempt == wanted and read_info(k, waiter)
  if info and info.fence and not info.ended and not is_marked(entry) then
    local slot, mode = string.match(entry, '/(%d+)') or '0', max_holders(current(k)) and current(k) or ''
    return { claim, info.fence, slot, mode, info.keeper and int_string(ms_left(k, entry)) or '' }
  end
end

if IS_REPLICA then
  return { 'replica' }
end
local reply = { 'outer', RUN_ID }
for _, k in ipairs(LOCKS) do
  local found = { '', '', '', '', '' }
  for claim in string.gmatch(ARGV[7], '%S+') do
    found = parse_claim(claim) and holds(k, claim) or found
  end
  for _, field in ipairs(found) do
    reply[#reply + 1] = field
  end
end
return reply

-- Report which of the client's outer runs (those that it runs under) hold the locks, and in which
-- mode.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] outer       the claims of those runs, the nearest last
--
-- Returns {'outer', run_id, then for each key: claim, token, slot (0 = none), mode tag ('' =
-- exclusive)}, where all four are '' if none of those runs holds the key; or {'replica'}.
--
-- Atomic, so that all keys are read at the same moment. Writes nothing: those runs renew and
-- release.
--
-- @include holders

-- Returns nothing for a run whose command has ended: its lock only waits for --min-hold to be over.
local function holds(k, claim)
  local waiter, wanted = parse_claim(claim)
  local attempt, entry = claim_of(k, waiter, true)
  local info = attempt == wanted and read_info(k, waiter)
  if info and info.fence and not info.ended then
    return { claim, info.fence, string.match(entry, '/(%d+)') or '0', max_holders(current(k)) and current(k) or '' }
  end
end

if IS_REPLICA then
  return { 'replica' }
end
local reply = { 'outer', RUN_ID }
for _, k in ipairs(LOCKS) do
  local found = { '', '', '', '' }
  for claim in string.gmatch(ARGV[7], '%S+') do
    found = parse_claim(claim) and holds(k, claim) or found
  end
  for _, field in ipairs(found) do
    reply[#reply + 1] = field
  end
end
return reply

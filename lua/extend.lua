-- Renew the locks, but only if all are still ours.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] ttl         of the locks from now on, ms
-- ARGV[8] quarantine  how long a server that lost its data does not vote, ms; 0 = off
-- ARGV[9] gate        run_id of the client's gate: a newcomer's vote was given before the gate and the stamp were
--                     known, and is told them now; '' = it knows them
--
-- Returns {'extended', run_id, ms of quarantine left or 0}, {'expired'} (free now) or {'foreign'} (not free).
--
-- Atomic, so that what is renewed is what was looked at. It never creates a lock: one that was broken, flushed or has
-- expired may have been held by another client in between.
--
-- @include holders

local TTL, GATE = ARGV[7], ARGV[9]

local function renew_share(k)
  -- @include share
  renew_entry(k, k.entry, TTL)
end

local quarantined_for = math.max(quarantine_left(tonumber(ARGV[8])), 0)
local lost
for _, k in ipairs(LOCKS) do
  local attempt, entry = claim_of(k, ME, true)
  k.entry = entry
  if attempt ~= ATTEMPT then
    lost = (free_capacity(k, MODE) <= 0 or lost == 'foreign') and 'foreign' or 'expired'
  end
end
if lost then
  return { lost }
end
for _, k in ipairs(LOCKS) do
  -- A command that takes no memory comes first: a server that is out of memory lets such a script go on.
  call('PEXPIRE', k.lock, TTL)
  if MODE == '' then
    call('PEXPIRE', k.info, TTL)
  else
    renew_share(k)
  end
  if GATE ~= '' then
    local info = read_info(k, ME)
    set_info_field(k, info, 'gate', GATE)
    set_info_field(k, info, 'stamp', ARGV[6])
  end
end
return { 'extended', run_id(), int_string(quarantined_for) }

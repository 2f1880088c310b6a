-- Raise the fencing tokens of locks that are ours to those that their voters agree on.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
-- ARGV[7] fences      the tokens
--
-- Returns {'raised'}, or {'refused', tokens here}: one of them is higher, or equal and another
-- sharer's; or a lock is no longer ours; or it was broken, and no process will hold it.
--
-- Atomic, so that a token never goes down and never belongs to two grants.
--
-- @include holders
-- @include mark
-- @include fence

local wanted, last, refused = numbers(ARGV[7]), {}, false
for i, k in ipairs(LOCKS) do
  local attempt, entry = claim_of(k, ME, true)
  k.our_info = read_info(k, ME)
  last[i] = last_fence(k)
  -- While we hold the lock exclusively, no other client can have set its token.
  local is_ours = MODE == '' or (k.our_info and k.our_info.fence == last[i])
  local is_behind = wanted[i] < tonumber(last[i]) or (wanted[i] == tonumber(last[i]) and not is_ours)
  local is_broken = entry and is_marked(entry) and k.our_info and k.our_info.keeper == 'none'
  refused = refused or attempt ~= ATTEMPT or is_broken or is_behind
end
if refused then
  return { 'refused', table.concat(last, ' ') }
end
for i, k in ipairs(LOCKS) do
  set_fence(k, int_string(wanted[i]))
  set_info_field(k, k.our_info, 'fence', int_string(wanted[i]))
end
return { 'raised' }

-- Raise the fencing tokens of locks that are ours to those that their voters agree on.
--
-- KEYS, ARGV[1..5]  as in lib/common.lua
-- ARGV[6] fences      the tokens
-- ARGV[7] keep        how long they are remembered, ms
--
-- Returns {'raised'}, or {'refused', tokens here}: one is higher, or another sharer's, or a lock is no longer ours.
--
-- Atomic, so that a token never goes down and never belongs to two grants.

local wanted, last, refused = numbers(ARGV[6]), {}, false
for i, k in ipairs(LOCKS) do
  local attempt = holding(k, ME, true)
  k.known = record(k, ME)
  last[i] = call('GET', k.fence) or '0'
  -- Alone, nobody else can have set it.
  local is_ours = WANT == '' or (k.known and k.known.fence == last[i])
  local is_behind = wanted[i] < tonumber(last[i]) or (wanted[i] == tonumber(last[i]) and not is_ours)
  refused = refused or attempt ~= ATTEMPT or is_behind
end
if refused then
  return { 'refused', table.concat(last, ' ') }
end
for i, k in ipairs(LOCKS) do
  call('SET', k.fence, whole(wanted[i]), 'PX', ARGV[7])
  -- One that is lost is not made anew: nobody would give it its time to live.
  if k.known then
    k.known.fence = whole(wanted[i])
    write_record(k, k.known)
  end
end
return { 'raised' }

-- The value at lock:K: the claim of an exclusive holder; the tag of a mode that several may hold, each with an entry in
-- shared:K; or anything else, which is the lock of a program other than redlock.
-- @include server

-- The number of slots in a mode's tag; nil if it has none.
local function slots_of(mode)
  return tonumber(string.match(mode, '^slots:(%d+)$'))
end

-- How many may hold a lock in this mode; nil if it is not the tag of a shared mode.
local function max_holders(mode)
  if string.find(mode, 'shared:', 1, true) == 1 then
    return math.huge
  end
  return slots_of(mode)
end

-- Whether K is held in a mode that several may hold.
local function is_shared(k)
  return max_holders(current(k) or '') ~= nil
end

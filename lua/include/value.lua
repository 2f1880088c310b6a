-- The value at lock:K: the claim of an exclusive holder; the tag of a shared mode (one that several
-- may hold), each holder of which has an entry in shared:K; or a foreign value.
-- @include server

-- The number of slots in a mode's tag; nil if it has none.
local function slots_of(mode)
  return tonumber(string.match(mode, '^slots:(%d+)$'))
end

-- The maximum number of holders in this mode; nil if it is not the tag of a shared mode.
local function max_holders(mode)
  if string.find(mode, 'shared:', 1, true) == 1 then
    return math.huge
  end
  return slots_of(mode)
end

-- Whether K is held in a shared mode.
local function is_shared(k)
  return max_holders(current(k) or '') ~= nil
end

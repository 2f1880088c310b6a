-- Which clients share a lock: those with our protocol, the one before it and the one after it.
-- @include constants

-- Returns a reply if the client with this record cannot share a lock with us. A record without a
-- protocol was lost, or is from a version before the first release: unknown is not a conflict.
local function other_protocol(info)
  local theirs = info and tonumber(info.protocol)
  if theirs and math.abs(theirs - PROTOCOL) > 1 then
    return { 'other_protocol', tostring(info.protocol), tostring(info.version or '') }
  end
end

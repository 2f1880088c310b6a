-- The mark of a broken claim: the claim at lock:K, or the sharer's entry, ends with '!'. So no version of redlock renews
-- it: to those that know no marks it is not their claim any more. It is freed by its holder, or when its lease is over.
-- Who broke it stands in info:K, field `broken` of the holder's record, as JSON: the first client that did, with `notify`, the
-- client that is woken when the lock is given back, and, of several, `markers`, all of them. The mark stays until the last of
-- them has taken it back.
-- @include info

local MARK = '!'

local function is_marked(entry)
  return string.sub(entry, -1) == MARK
end

-- Who broke the claim of this holder; an empty table if that is not known.
local function broken_by(k, waiter)
  local info = read_info(k, waiter)
  local ok, who = pcall(cjson.decode, info and info.broken or '')
  return ok and type(who) == 'table' and who or {}
end

-- The reply to a holder whose claim is marked.
local function broken_reply(k, ...)
  local reply = { 'broken', ... }
  for field, value in pairs(broken_by(k, ME)) do
    reply[#reply + 1] = field
    reply[#reply + 1] = tostring(value)
  end
  return reply
end

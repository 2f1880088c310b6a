-- The mark of a broken claim: the claim at lock:K, or the sharer's entry, ends with '!'. No version
-- of redlock renews it: to one that does not know marks it is another client's claim. It is freed
-- by its holder, or when its lease is over.
--
-- The field `broken` of the holder's record in info:K describes, as JSON, the first client that
-- broke the claim. `notify` is the client that is woken when the lock is released, and `markers`,
-- if there are several, lists all clients that have marked it. The mark stays until the last of
-- them has withdrawn it.
-- @include info

local MARK = '!'

local function is_marked(entry)
  return string.sub(entry, -1) == MARK
end

-- The client that broke this holder's claim; an empty table if it is unknown.
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

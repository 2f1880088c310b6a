-- The mark of success in done:K: '<server ms> <client, JSON>'. It is left by a run with --once whose
-- command has ended with 0, and makes later requests with --once skip theirs.
-- @include server

-- Returns a reply if all locks have marks, none of which is older than `max_age` ms. A mark that is
-- as far in the future is one from before this server's clock was set back.
local function done_reply(max_age)
  local reply
  for _, k in ipairs(LOCKS) do
    local at, who = string.match(call('GET', k.done) or '', '^(%d+) (.*)$')
    local age = at and math.abs(NOW_MS - at)
    if not age or age > max_age then
      return
    end
    reply = reply or { 'done', int_string(age), who }
  end
  return reply
end

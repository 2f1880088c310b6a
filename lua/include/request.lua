-- The parameters of every script.
--
-- KEYS: eleven for each key K of the user, in the order given, then two for all of them:
--   lock:K      the holder's claim, the tag of a shared mode, or a foreign value
--                                                      (string, PX = lease)
--   queue:K     the waiters in order                   (zset: waiter, flags, mode -> arrival stamp)
--   waiters:K   until when each waiter counts as alive (zset: the same -> server ms)
--   info:K      the record of each holder              (hash, PX = lease: waiter -> JSON)
--   fence:K     the last fencing token                 (string, PX = FENCE_TTL_MS)
--   shared:K    until when each sharer holds the lock  (zset: claim, '/', slot -> server ms)
--   modes:K     the waiters by mode: see queue.lua     (zset: mode, place and waiter -> 0)
--   newest:K    the newest of the requests that supersede each other: see newest.lua (string, JSON)
--   log:K       the finished runs: see log.lua         (stream, PX = LOG_TTL_MS)
--   who:K       the clients' fields, for each waiter   (hash: waiter -> JSON)
--   done:K      the mark of success: see done.lua      (string, PX = at least 30 days)
--   tombstone   exists if this waiter has given up: its late requests change nothing; or describes
--               how its grant ended: see trace.lua
--   marker      this server's reign (see marker.lua), since when it has been known, and the longest
--               quarantine (string, never expires)
-- A cluster has one more key, whose name only the server knows: see shard_known_since().
--
-- ARGV[1] claim     '<waiter>.<attempt>'
-- ARGV[2] notify    prefix of the wake-up lists, followed by the waiter's name
-- ARGV[3] servers   number of servers that the lock is spread over
-- ARGV[4] mode      '' = exclusive; 'shared:<group>'; 'slots:<n>': the tag at lock:K while it is
--                   held in this mode; '?' = the grant's mode, for a client that has only its
--                   token: see bearer.lua
-- ARGV[5] flags     how the request queues: see constants.lua
-- ARGV[6] stamp     the client's arrival stamp, server time in microseconds, if an earlier reply
--                   had one; '' = none. If the request supersedes others, followed by the run_id of
--                   the server that assigned it ('' = a single server), and its age in microseconds
--
-- Redis runs a script to its end before it does anything else, so each script is one atomic step.
-- It is not all or nothing: if a command is refused half-way (ACL, memory), the commands before it
-- stay in effect. No key of ours may stay forever because of that: see store_grant() and
-- expire_or_delete().

local CLAIM, NOTIFY, SERVERS, MODE, FLAGS = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local TOMBSTONE = KEYS[#KEYS - 1]

local MARKER = KEYS[#KEYS]

local LOCKS = {}
for i = 1, #KEYS - 2, 11 do
  local lock, queue, waiters, info, fence, shared, modes, newest_key, log, who, done = unpack(KEYS, i, i + 10)
  LOCKS[#LOCKS + 1] = {
    lock = lock, queue = queue, waiters = waiters, info = info, fence = fence, shared = shared, modes = modes,
    newest = newest_key, log = log, who = who, done = done,
  }
end

-- The log of a lock that is no longer used expires after 30 days.
local LOG_TTL_MS = '2592000000'

-- From Redis 7 on an error may have fields: add the command that was refused, which the server's
-- own text does not name. Older servers keep their plain text.
local call, try, type_of = redis.call, redis.pcall, type
if redis.REDIS_VERSION_NUM then
  call = function(command, key, ...)
    local reply = try(command, key, ...)
    if type_of(reply) == 'table' and reply.err then
      error({ err = reply.err .. ' [' .. command .. ' ' .. (key or '') .. ']' })
    end
    return reply
  end
end

-- Raises a caught error again. From Redis 7 on pcall() turns it into plain text, which the server
-- would send without its error code.
local function fail(why)
  error(redis.REDIS_VERSION_NUM and type(why) == 'string' and { err = why } or why, 0)
end

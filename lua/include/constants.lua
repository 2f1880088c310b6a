-- Constants that the scripts and src/lock/redis share: build.rs makes a Rust constant of each.

-- The protocol of this client. docs/wire.md says what raises it, and which protocols share a lock.
local PROTOCOL = 1

-- A waiter renews its place in the queue this often: one BLPOP and one script in this time.
local WAITER_RENEWAL_MS = 2100

-- How long a waiter counts as alive without renewing its place.
local WAITER_LEASE_MS = 5000

-- A lease up to this length needs no announcement to all servers.
local USUAL_LEASE_MS = 30000

-- Flag of a request: it queues ahead of all waiters without this flag.
local PREFERRED = '!'

-- Flag of a request: it joins current holders of its mode, even if others are waiting.
local JOINS = '+'

-- Flag of a request: it supersedes older waiters with this flag.
local SUPERSEDES = '^'

-- Flag of a request: it needs other keys, too.
local MULTI = '&'

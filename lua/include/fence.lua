-- The fencing token of K.
-- @include server

-- A token outlives its lock by 7 days. After that the server's clock keeps the tokens growing.
local FENCE_TTL_MS = '604800000'

-- Above this Lua cannot count, and two grants would get the same token.
local LARGEST_FENCE = 2 ^ 53 - 1

local function last_fence(k)
  return call('GET', k.fence) or '0'
end

local function set_fence(k, fence)
  call('SET', k.fence, fence, 'PX', FENCE_TTL_MS)
end

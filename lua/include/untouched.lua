-- The most frequent case, in which there is nothing to look at.
-- @include server

-- Whether there is no holder, no waiter and nothing left by one: most often one command tells this about all keys.
local function nothing_exists()
  local keys = { TOMBSTONE }
  for _, k in ipairs(LOCKS) do
    local n = #keys
    keys[n + 1], keys[n + 2], keys[n + 3], keys[n + 4] = k.lock, k.queue, k.info, k.shared
  end
  if call('EXISTS', unpack(keys)) > 0 then
    return false
  end
  for _, k in ipairs(LOCKS) do
    k.value, k.has_queue, k.is_untouched = false, false, true
  end
  return true
end

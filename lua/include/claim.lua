-- Claims and numbers as keys and arguments have them.
-- @include request

-- Splits a claim, or a sharer's entry, which is a claim followed by '/' and its slot. Either may be
-- marked: see mark.lua.
local function parse_claim(claim)
  local waiter, attempt = string.match(claim, '^([%x-]+)%.(%d+)/?%d*!?$')
  return waiter, tonumber(attempt)
end

local ME, ATTEMPT = parse_claim(CLAIM)

local function has(flags, flag)
  return string.find(flags, flag, 1, true)
end

-- tostring() and .. write large numbers as 1.7e+12. %d is exact where a C long has 64 bits, and
-- faster than %.0f, which is exact everywhere.
local INTEGER = string.format('%d', 9007199254740991) == '9007199254740991' and '%d' or '%.0f'

local function int_string(number)
  return string.format(INTEGER, number)
end

-- One number for each key: '7 8' -> {7, 8}.
local function numbers(text)
  local list = {}
  for number in string.gmatch(text, '%d+') do
    list[#list + 1] = tonumber(number)
  end
  return list
end

-- Report to a holder whether its claim was broken.
--
-- KEYS, ARGV[1] to ARGV[6]: see include/request.lua
--
-- Returns {'ours', run_id}, {'broken', run_id, field, value, ... of the breaking client}, or
-- {'gone', run_id}: not held any more, or released by its token and only kept by its minimum hold.
--
-- Atomic, so that all keys are read at the same moment. Writes nothing.
--
-- @include holders
-- @include mark

for _, k in ipairs(LOCKS) do
  local attempt, entry = claim_of(k, ME, true)
  if attempt ~= ATTEMPT then
    return { 'gone', RUN_ID }
  end
  if is_marked(entry) then
    return broken_reply(k, RUN_ID)
  end
  if (read_info(k, ME) or {}).ended then
    return { 'gone', RUN_ID }
  end
end
return { 'ours', RUN_ID }

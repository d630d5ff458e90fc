-- Deletes the hashes of jobs that have ended.
--
-- ARGV: RQ ids. Returns those with dependents.
local keys, dependents, awaited = {}, {}, {}
for place, id in ipairs(ARGV) do
  keys[place] = 'rq:job:' .. id
  dependents[place] = keys[place] .. ':dependents'
end
redis.call('UNLINK', unpack(keys))
if redis.call('EXISTS', unpack(dependents)) > 0 then
  for place, key in ipairs(dependents) do
    if redis.call('EXISTS', key) == 1 then awaited[#awaited + 1] = ARGV[place] end
  end
end
return awaited

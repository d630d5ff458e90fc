-- Moves RQ jobs that depend on an earlier delivery to the later one. The list of a dependent's dependencies
-- changes too: to RQ, a dependency without a hash has been met.
--
-- ARGV: earlier and later RQ id of each job. Returns the number of dependents.
local moved = 0
local function quoted(text) return '"' .. text .. '"' end
local function replaced(text, old, new)
  local first, last = string.find(text, quoted(old), 1, true)
  if not first then return text end
  return string.sub(text, 1, first - 1) .. quoted(new) .. string.sub(text, last + 1)
end
local function move(source, old, new)
  if redis.call('TYPE', source).ok ~= 'set' then return end
  for _, dependent in ipairs(redis.call('SMEMBERS', source)) do
    local key = 'rq:job:' .. dependent
    local dependencies = 'rq:job::' .. dependent .. ':dependencies'
    if redis.pcall('SREM', dependencies, old) == 1 then
      redis.call('SADD', dependencies, new)
    end
    local named = redis.pcall('HGET', key, 'dependency_ids')
    if type(named) == 'string' then redis.call('HSET', key, 'dependency_ids', replaced(named, old, new)) end
    redis.call('SADD', 'rq:job:' .. new .. ':dependents', dependent)
    moved = moved + 1
  end
  redis.call('DEL', source)
end
for i = 1, #ARGV, 2 do
  move('rq:job:' .. ARGV[i] .. ':dependents', ARGV[i], ARGV[i + 1])
  move('drain:dependents:' .. ARGV[i], ARGV[i], ARGV[i + 1])
end
return moved

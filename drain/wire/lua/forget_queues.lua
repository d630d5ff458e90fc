-- Forgets queues that our database feeds, if they have nothing left in Redis: ids, workers or registries of RQ.
-- The next push adds such a queue again.
--
-- ARGV: installation; then names of queues. Returns how many were forgotten.
local REGISTRIES = {'failed', 'finished', 'wip', 'deferred', 'scheduled', 'canceled', 'workers'}
local ours, forgotten = ARGV[1], 0
for place = 2, #ARGV do
  local queue = ARGV[place]
  local list = 'rq:queue:' .. queue
  local keys = {list, list .. ':intermediate'}
  for _, registry in ipairs(REGISTRIES) do keys[#keys + 1] = 'rq:' .. registry .. ':' .. queue end
  local owner = redis.call('HGET', QUEUE_OWNERS, queue)
  if owner and not is_foreign(owner, ours) and redis.call('EXISTS', unpack(keys)) == 0 then
    redis.call('HDEL', QUEUE_OWNERS, queue)
    redis.pcall('SREM', 'rq:queues', list)
    forgotten = forgotten + 1
  end
end
return forgotten

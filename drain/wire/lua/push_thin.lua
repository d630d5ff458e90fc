-- Appends the ids of thin deliveries, which have no hashes, to the list of one queue.
--
-- If another database feeds the namespace or the queue, or the key is not a list, nothing is pushed.
--
-- ARGV: installation, label, key of the namespace, queue; then the ids.
-- Returns as `push.lua` does.
local ours, label, marker, queue = unpack(ARGV, 1, 4)
if ours ~= '' then
  local owner = redis.call('GET', marker)
  if is_foreign(owner, ours) then return {owner, {}, {}, {}, {}} end
  if not owner then redis.call('SET', marker, recovering(ours, label)) end
  local feeds = redis.call('HGET', QUEUE_OWNERS, queue)
  if is_foreign(feeds, ours) then return {'', {}, {queue, feeds}, {}, {}} end
  if not feeds then redis.call('HSET', QUEUE_OWNERS, queue, ours .. ' ' .. label) end
end
local key = 'rq:queue:' .. queue
local misused = enter(key)
local pushed = redis.pcall('RPUSH', key, unpack(ARGV, 5))
if type(pushed) == 'table' then
  if not string.find(pushed.err, 'WRONGTYPE') then return pushed end
  return {'', {queue}, {}, {}, misused}
end
return {'', {}, {}, {queue, pushed}, misused}

-- Removes ids and their copies from a list, and performs each one's action if the id is still in the list:
-- another worker may have popped it.
--
-- KEYS: list, RQ's registry of failed jobs of the queue.
-- ARGV: time as text, until when the registry keeps a job, for how many seconds that is, reason of a refusal; then for
--   each id: action ('pop', 'tail', 'refuse' or 'drop'), number of copies, RQ id.
-- Returns the ids that were in the list.
local done = {}
for i = 5, #ARGV, 3 do
  local action, id = ARGV[i], ARGV[i + 2]
  local removed = redis.call('LREM', KEYS[1], ARGV[i + 1], id)
  if removed > 0 then
    done[#done + 1] = id
    local key = 'rq:job:' .. id
    if action == 'tail' then
      for _ = 1, removed do redis.call('RPUSH', KEYS[1], id) end
    elseif action == 'refuse' and redis.call('TYPE', key).ok == 'hash' then
      redis.call('HSET', key, 'status', 'failed', 'ended_at', ARGV[1], 'exc_info', ARGV[4])
      redis.call('EXPIRE', key, ARGV[3])
      redis.call('ZADD', KEYS[2], ARGV[2], id)
    end
  end
end
return done

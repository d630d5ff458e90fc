-- Removes a worker whose process has died from RQ's sets. A new worker of that name
-- has another pid; one that ended normally has the field `death`.
--
-- KEYS: hash of the worker, set of all workers, set of the workers of each queue. ARGV: pid.
-- Returns 1 if the worker was removed, else 0.
local pid = redis.call('HGET', KEYS[1], 'pid')
if pid and (pid ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'death') == 1) then return 0 end
for place = 2, #KEYS do redis.call('SREM', KEYS[place], KEYS[1]) end
return redis.call('DEL', KEYS[1])

-- Shows that a worker runs a job, if the job's hash exists: a deleted hash, created
-- again here, would stay forever. Since version 3 RQ reads the job of a worker from its executions.
--
-- KEYS: job, execution of the job, executions of the worker. ARGV: RQ id, name of the worker, time, seconds to live.
if redis.call('EXISTS', KEYS[1]) == 0 then return end
redis.call('HSET', KEYS[1], 'worker_name', ARGV[2], 'status', 'started')
redis.call('HSETNX', KEYS[2], 'created_at', ARGV[3])
redis.call('HSET', KEYS[2], 'id', 'drain', 'job_id', ARGV[1], 'worker_name', ARGV[2], 'last_heartbeat', ARGV[3])
redis.call('SADD', KEYS[3], ARGV[1] .. ':drain')
redis.call('EXPIRE', KEYS[2], ARGV[4])
redis.call('EXPIRE', KEYS[3], ARGV[4])

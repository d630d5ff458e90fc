-- Returns a dead worker's plain RQ job to its list, if RQ has not begun the job: the id is then still
-- in the intermediate list, and the job has no execution.
--
-- KEYS: list, intermediate list, executions of the job. ARGV: RQ id.
-- Returns 1 if the id was returned, else 0.
if redis.call('EXISTS', KEYS[3]) == 0 and redis.call('LREM', KEYS[2], 1, ARGV[1]) > 0 then
  redis.call('LPUSH', KEYS[1], ARGV[1])
  return 1
end
return 0

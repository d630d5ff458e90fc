-- Tells those who wait for the results of jobs that these have ended: one command for a batch.
-- ARGV: ids of the jobs.
for _, id in ipairs(ARGV) do
    redis.call('PUBLISH', 'drain:ended:' .. id, '')
end

-- Notifies callers that wait for results of ended jobs: one command for a batch.
-- ARGV: ids of the jobs.
for _, id in ipairs(ARGV) do
    redis.call('PUBLISH', 'drain:ended:' .. id, '')
end

-- Writes the jobs of one call: all hashes first, then one RPUSH for each queue, so that no id is ever in a list
-- without its hash.
--
-- Jobs are left out if their queue's key is not a list, or another database feeds the queue. If the key of
-- such a queue is among KEYS, nothing is written at all; nor if another database feeds the namespace.
--
-- KEYS: lists of queues that must take their jobs.
-- ARGV: time, installation, label, key of the namespace, seconds for which RQ keeps a failed job, `result` of tracked
--   jobs, number of templates; each template: queue, timeout, result_ttl ('' for a forwarded job), name to show, data up
--   to the job id, data after it ('' if the former is all); then each run of jobs with the same template: its index from
--   0, and their RQ ids, separated by spaces.
-- Returns the text of the database that feeds the namespace, or ''; the queues whose key is not a list; each queue that
--   another database feeds, followed by the text of that database; each queue whose list took jobs, followed by the
--   length of the list; and keys of RQ's that hold something else.
local now, ours, label, marker, failure_ttl, result, templates = unpack(ARGV, 1, 7)
local first_template, size = 8, 6
local no_lists, foreign = {}, {}
local function is_ours(queue)
  if ours == '' then return true end
  local owner = redis.call('HGET', QUEUE_OWNERS, queue)
  if is_foreign(owner, ours) then
    foreign[#foreign + 1] = queue
    foreign[#foreign + 1] = owner
    return false
  end
  if not owner then redis.call('HSET', QUEUE_OWNERS, queue, ours .. ' ' .. label) end
  return true
end
if ours ~= '' then
  local owner = redis.call('GET', marker)
  if is_foreign(owner, ours) then return {owner, {}, {}, {}, {}} end
  if not owner then redis.call('SET', marker, recovering(ours, label)) end
end
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local queue = string.sub(key, #'rq:queue:' + 1)
  if is_ours(queue) and kind ~= 'list' and kind ~= 'none' then no_lists[#no_lists + 1] = queue end
end
if #no_lists + #foreign > 0 then return {'', no_lists, foreign, {}, {}} end
local ids_of, lengths, misused = {}, {}, {}
local function write(id, timeout, description, data, result_ttl, queue)
  local key = 'rq:job:' .. id
  local written
  if result_ttl == '' then
    written = redis.pcall('HSET', key, 'status', 'queued', 'origin', queue, 'created_at', now, 'enqueued_at', now,
      'timeout', timeout, 'description', description, 'data', data)
  else
    written = redis.pcall('HSET', key, 'status', 'queued', 'origin', queue, 'created_at', now, 'enqueued_at', now,
      'timeout', timeout, 'description', description, 'data', data, 'result_ttl', result_ttl,
      'failure_ttl', failure_ttl, 'result', result)
  end
  if type(written) ~= 'table' then return nil end
  if not string.find(written.err, 'WRONGTYPE') then return written end
  -- Something else has the name of this delivery.
  redis.call('UNLINK', key)
  return write(id, timeout, description, data, result_ttl, queue)
end
for i = first_template + size * templates, #ARGV, 2 do
  local template = first_template + size * ARGV[i]
  local queue, timeout, result_ttl, name, data, data_end = unpack(ARGV, template, template + size - 1)
  local ids = ids_of[queue]
  if ids == nil then
    ids = is_ours(queue) and {}
    ids_of[queue] = ids
  end
  if ids then
    for id, job_id in string.gmatch(ARGV[i + 1], '(%S+%-(%d+)%-%w+)') do
      local call = data
      if data_end ~= '' then call = data .. struct.pack('<I5', job_id) .. data_end end
      local failed = write(id, timeout, name .. ' #' .. job_id, call, result_ttl, queue)
      if failed then return failed end
      ids[#ids + 1] = id
    end
  end
end
for queue, ids in pairs(ids_of) do
  if ids then
    misused = enter('rq:queue:' .. queue)
    local pushed = redis.pcall('RPUSH', 'rq:queue:' .. queue, unpack(ids))
    if type(pushed) == 'table' and pushed.err then
      if not string.find(pushed.err, 'WRONGTYPE') then return pushed end
      no_lists[#no_lists + 1] = queue
    else
      lengths[#lengths + 1] = queue
      lengths[#lengths + 1] = pushed
    end
  end
end
return {'', no_lists, foreign, lengths, misused}

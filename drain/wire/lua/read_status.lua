-- Reads the status of each job in RQ, and why failed ones failed.
--
-- ARGV: RQ ids. Returns status and last traceback, as RQ has packed it, of each ('' where there is none).
local seen = {}
for _, id in ipairs(ARGV) do
  local key = 'rq:job:' .. id
  local status, traceback = '', ''
  if redis.call('TYPE', key).ok == 'hash' then status = redis.call('HGET', key, 'status') or '' end
  if status == 'failed' then
    local results = redis.pcall('XREVRANGE', 'rq:results:' .. id, '+', '-', 'COUNT', 1)
    local fields = not results.err and results[1] and results[1][2] or {}
    for i = 1, #fields, 2 do
      if fields[i] == 'exc_string' then traceback = fields[i + 1] end
    end
  end
  seen[#seen + 1] = status
  seen[#seen + 1] = traceback
end
return seen

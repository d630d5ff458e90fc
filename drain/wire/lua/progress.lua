-- Writes the progress of running jobs, unless a later attempt has written its own.
--
-- KEYS: progress of each job. ARGV: seconds until it expires; then for each job the fencing token of its attempt and
-- a JSON object with that `token`, or an empty text, which deletes the progress of that attempt.
for place, key in ipairs(KEYS) do
  local token, text = tonumber(ARGV[2 * place]), ARGV[2 * place + 1]
  local is_read, found = pcall(cjson.decode, redis.pcall('GET', key))
  local last = is_read and type(found) == 'table' and tonumber(found.token) or 0
  if text == '' then
    if last == token then redis.call('DEL', key) end
  elseif last <= token then
    redis.call('SET', key, text, 'EX', ARGV[1])
  end
end

-- Finds the queues for which live workers have registered that all need no hash of a delivery.
--
-- A process of `drain work` may have registered two workers: `<name>.tracked`, and its companion `<name>`, which pops
-- nothing. A worker whose hash has expired is dead.
--
-- KEYS: set of the workers of each queue. ARGV: field of a worker's hash, and the namespace that is in this field of a
--   worker that needs no hash.
-- Returns 1 or 0 for each queue.
local field, namespace = ARGV[1], ARGV[2]
local function needs_none(key) return redis.pcall('HGET', key, field) == namespace end
local function is_companion(key) return redis.call('EXISTS', key .. '.tracked') == 1 and needs_none(key .. '.tracked') end
local answers = {}
for place, registered in ipairs(KEYS) do
  local any, others = false, false
  if redis.call('TYPE', registered).ok == 'set' then
    for _, key in ipairs(redis.call('SMEMBERS', registered)) do
      if needs_none(key) then
        any = true
      elseif redis.call('EXISTS', key) == 1 and not is_companion(key) then
        others = true
      end
    end
  end
  answers[place] = any and not others and 1 or 0
end
return answers

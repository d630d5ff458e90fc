-- Finds the queues that have live workers, none of which needs a delivery's hash.
--
-- A process of `drain work` may have registered two workers: `<name>.tracked`, and its companion `<name>`, which pops
-- nothing. A worker whose hash has expired is dead.
--
-- KEYS: mark of all queues whose deliveries are whole for a while; for each queue the set of its workers, and its mark.
-- ARGV: field of a worker's hash, and its value, a namespace, in workers that need no hash.
-- Returns 1 or 0 for each queue.
local field, namespace = ARGV[1], ARGV[2]
local function needs_none(key) return redis.pcall('HGET', key, field) == namespace end
local function is_companion(key) return redis.call('EXISTS', key .. '.tracked') == 1 and needs_none(key .. '.tracked') end
local is_unknown, answers = redis.call('EXISTS', KEYS[1]) == 1, {}
for place = 2, #KEYS, 2 do
  local registered = KEYS[place]
  local any, others = false, is_unknown or redis.call('EXISTS', KEYS[place + 1]) == 1
  if redis.call('TYPE', registered).ok == 'set' then
    for _, key in ipairs(redis.call('SMEMBERS', registered)) do
      if needs_none(key) then
        any = true
      elseif redis.call('EXISTS', key) == 1 and not is_companion(key) then
        others = true
      end
    end
  end
  answers[place / 2] = any and not others and 1 or 0
end
return answers

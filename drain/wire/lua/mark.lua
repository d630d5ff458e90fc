-- Marks the namespace as ours, and as one that this Redis remembers all deliveries of.
--
-- ARGV: installation, label, key of the namespace.
-- Returns the text of the database that feeds the namespace, if it is another one; else ''.
local owner = redis.call('GET', ARGV[3])
if is_foreign(owner, ARGV[1]) then return owner end
redis.call('SET', ARGV[3], remembering(ARGV[1], ARGV[2]))
return ''

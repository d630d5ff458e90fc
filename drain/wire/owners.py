"""Who feeds what: a namespace and a queue belong to one database, and Redis holds the name of its installation.

Both are claimed by the first push, inside of the script that pushes, and looked at by each later one. So two
databases that share a namespace or a queue by mistake never mix their jobs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Hash: name of a queue -> installation and label. No namespace holds a colon, so no marker has this key.
QUEUE_OWNERS = "drain:owners:queues"

_REMEMBERS, _RECOVERS = "remembers", "recovers"
_OWNER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}) (.*)", re.DOTALL)
_LONGEST_LABEL = 150

# Lua: whether the text names an installation that is not `mine`. A text of an older version names none.
STRANGE = """
local function is_strange(owner)
  return mine ~= '' and owner and string.match(owner, '^%x+%-%x+%-%x+%-%x+%-%x+ ')
    and string.sub(owner, 1, #mine) ~= mine
end
"""
# ARGV: our installation, our label, the namespace's key.
MARK = f"""
local mine = ARGV[1]
{STRANGE}
local owner = redis.call('GET', ARGV[3])
if is_strange(owner) then return owner end
redis.call('SET', ARGV[3], mine .. ' {_REMEMBERS} ' .. ARGV[2])
return ''
"""
# Lua: the text of a namespace that was fed, or is about to be, but whose deliveries have not all been pushed.
RECOVERING = f"mine .. ' {_RECOVERS} ' .. label"
# What was refused while the other one fed a queue is in no list, and below the watermark: the namespace is marked, if
# it is ours or free, so that whoever leads pushes again all that waits.
#
# ARGV: the installation that is gone, the namespace's key, our installation, our label.
TAKE_OVER = f"""
local taken, mine, label = 0, ARGV[3], ARGV[4]
{STRANGE}
local function is_theirs(owner)
  return owner and string.sub(owner, 1, #ARGV[1] + 1) == ARGV[1] .. ' '
end
local owners = redis.call('HGETALL', '{QUEUE_OWNERS}')
for i = 1, #owners, 2 do
  if is_theirs(owners[i + 1]) then
    redis.call('HDEL', '{QUEUE_OWNERS}', owners[i])
    taken = taken + 1
  end
end
if is_theirs(redis.call('GET', ARGV[2])) then
  redis.call('DEL', ARGV[2])
  taken = taken + 1
end
if taken > 0 and not is_strange(redis.call('GET', ARGV[2])) then
  redis.call('SET', ARGV[2], {RECOVERING})
end
return taken
"""


class Owner(NamedTuple):
    """A database that feeds a namespace or a queue.

    Attributes:
        installation: What tells it from all other databases; "" where an older version wrote none.
        label: Database and server, for people.
        recovers: Whether deliveries may be missing from this Redis.
    """

    installation: str
    label: str
    recovers: bool = False

    def __str__(self) -> str:
        """What people are told, with nothing that a terminal would obey."""
        printable = self.label.encode("ascii", "replace").decode()
        label = "".join(each if each.isprintable() else "?" for each in printable)[:_LONGEST_LABEL]
        return f"{label or 'unknown'} (installation {self.installation})"


def read_owner(text: bytes) -> Owner:
    """The owner that Redis names, of a namespace or a queue."""
    match = _OWNER.fullmatch(text.decode(errors="replace"))
    if match is None:
        return Owner("", "")
    state, _, rest = match[2].partition(" ")
    if state in (_REMEMBERS, _RECOVERS):
        return Owner(match[1], rest, recovers=state == _RECOVERS)
    return Owner(match[1], match[2])

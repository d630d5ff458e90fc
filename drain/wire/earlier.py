"""Earlier deliveries of jobs that are delivered again: what RQ says of them, and what depends on them.

rq:job:<rq id>:dependents      set of RQ ids: plain RQ jobs that wait for this delivery to be finished
rq:job::<rq id>:dependencies   set of RQ ids: what a plain RQ job waits for (RQ spells it so)
rq:results:<rq id>             stream: RQ's results of a job, the last of which says why it has failed
rq:failed:<queue>              sorted set of RQ ids: RQ's registry of failed jobs
drain:dependents:<rq id>       ours: dependents of a delivery that RQ takes for finished, though its job is not
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

import redis

# What RQ raises, and writes down, where a worker's serializer cannot read a call.
_UNREADABLE = b"DeserializationError"
_LONGEST_TRACEBACK = 1_000_000

# ARGV: RQ ids. Answers with the status of each, and with the last result of those that have failed.
_LOOK = """
local seen = {}
for _, id in ipairs(ARGV) do
  local key = 'rq:job:' .. id
  local status, told = '', ''
  if redis.call('TYPE', key).ok == 'hash' then status = redis.call('HGET', key, 'status') or '' end
  if status == 'failed' then
    local results = redis.pcall('XREVRANGE', 'rq:results:' .. id, '+', '-', 'COUNT', 1)
    local fields = not results.err and results[1] and results[1][2] or {}
    for i = 1, #fields, 2 do
      if fields[i] == 'exc_string' then told = fields[i + 1] end
    end
  end
  seen[#seen + 1] = status
  seen[#seen + 1] = told
end
return seen
"""
# ARGV: earlier and later RQ id of each. What a child waits for is changed as well: RQ takes a dependency that it knows
# nothing of for met.
_CARRY = """
local carried = 0
local function quoted(text) return '"' .. text .. '"' end
local function replaced(text, old, new)
  local first, last = string.find(text, quoted(old), 1, true)
  if not first then return text end
  return string.sub(text, 1, first - 1) .. quoted(new) .. string.sub(text, last + 1)
end
local function carry(source, old, new)
  if redis.call('TYPE', source).ok ~= 'set' then return end
  for _, child in ipairs(redis.call('SMEMBERS', source)) do
    local key = 'rq:job:' .. child
    local dependencies = 'rq:job::' .. child .. ':dependencies'
    if redis.pcall('SREM', dependencies, old) == 1 then
      redis.call('SADD', dependencies, new)
    end
    local named = redis.pcall('HGET', key, 'dependency_ids')
    if type(named) == 'string' then redis.call('HSET', key, 'dependency_ids', replaced(named, old, new)) end
    redis.call('SADD', 'rq:job:' .. new .. ':dependents', child)
    carried = carried + 1
  end
  redis.call('DEL', source)
end
for i = 1, #ARGV, 2 do
  carry('rq:job:' .. ARGV[i] .. ':dependents', ARGV[i], ARGV[i + 1])
  carry('drain:dependents:' .. ARGV[i], ARGV[i], ARGV[i + 1])
end
return carried
"""


class Fate(StrEnum):
    """What RQ says of a delivery that did not come back."""

    UNKNOWN = "unknown"
    STOPPED = "stopped"
    UNREADABLE = "unreadable"


class Gone(NamedTuple):
    """A delivery that a later one has replaced."""

    rq_id: str
    queue: str


class Earlier:
    """Looks at such deliveries, and clears them away.

    Args:
        client: The connection to Redis; what it raises is for the caller to translate.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._look = client.register_script(_LOOK)
        self._carry = client.register_script(_CARRY)

    def look(self, rq_ids: Sequence[str]) -> list[Fate]:
        """Tell what RQ says of each: stopped by a person, or failed by a worker that could not read the call."""
        answer: Any = self._look(args=list(rq_ids))
        pairs = iter(answer)
        return [_fate(status, told) for status, told in zip(pairs, pairs, strict=True)]

    def carry(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Let what depends on an earlier delivery depend on the later one; returns how many jobs these are."""
        carried: Any = self._carry(args=[rq_id for pair in pairs for rq_id in pair])
        return int(carried)

    def forget(self, gone: Sequence[Gone]) -> None:
        """Delete the hashes and results, and what RQ's registries of failed jobs say of them."""
        failed: dict[str, list[str]] = {}
        for rq_id, queue in gone:
            failed.setdefault(f"rq:failed:{queue}", []).append(rq_id)
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.unlink(*[key for each in gone for key in _keys(each.rq_id)])
            for registry, rq_ids in failed.items():
                pipeline.zrem(registry, *rq_ids)
            # A registry that is no sorted set is not ours to mend.
            pipeline.execute(raise_on_error=False)


def hold_dependents(client: redis.Redis, rq_id: str) -> None:
    """Keep what depends on a delivery from being released: RQ takes it for finished, and the job will be tried again.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    # There are none, nearly always.
    with suppress(redis.ResponseError):
        client.rename(f"rq:job:{rq_id}:dependents", f"drain:dependents:{rq_id}")


def _keys(rq_id: str) -> tuple[str, str]:
    return f"rq:job:{rq_id}", f"rq:results:{rq_id}"


def _fate(status: bytes, told: bytes) -> Fate:
    if status == b"stopped":
        return Fate.STOPPED
    if told and _UNREADABLE in _inflated(told):
        return Fate.UNREADABLE
    return Fate.UNKNOWN


def _inflated(told: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(base64.b64decode(told), _LONGEST_TRACEBACK)
    except (ValueError, zlib.error):
        return b""

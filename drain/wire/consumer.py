"""The worker's side of the wire: ids are taken from RQ's lists, many at a time, and what is done is cleared."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic, time
from typing import Any, NamedTuple

import redis

from drain.errors import UnavailableError
from drain.wire.producer import connect, describe, reachable
from drain.wire.strangers import Kind, Strangers
from drain.wire.workers import forget_worker

log = logging.getLogger(__name__)

# Redis is asked to answer a command that blocks after so long, should nothing come.
WAIT_SECONDS = 30
_ANSWER_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 1.0
# How long ids of other databases at the head of a list are not looked at: their own workers are to take them.
_LEAVE_ALONE_SECONDS = 1.0
# Pages of ids that are judged in one call, half a second's worth.
_MOST_ROUNDS = 50
# It is told of again every few seconds.
_EXECUTION_SECONDS = 120
# A key that never is: to wait on where there is no other.
_NOTHING = "drain:owners:nothing"
# What the script has to say.
_TAKEN, _SUSPENDED, _TO_BE_SIFTED = range(3)

# Takes ids from the heads of the lists, the first list first, until there are enough; none while RQ is suspended.
#
# An id that is none of our tracked ones is taken alone, and by way of RQ's intermediate list: for all that we know,
# this list is the only place that it is in. Keys that are no lists are left alone.
#
# ARGV[5] has a letter for each of KEYS: 't' where only tracked jobs run, so that such an id at the head has to be
# looked at before anything else; 'a' where such ids are left alone for now; 'p' otherwise.
#
# One id may have been popped already, by the command that blocks: ARGV[3], from the list ARGV[4]; '' if none was.
_TAKE = """
local most, prefix, popped, popped_from = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local function is_ours(id)
  return string.sub(id, 1, #prefix) == prefix and string.match(id, '^%d+%-%d+$', #prefix + 1)
end
local bad, lists, mode = {}, {}, {}
for place, key in ipairs(KEYS) do
  mode[key] = string.sub(ARGV[5], place, place)
  local kind = redis.call('TYPE', key).ok
  if kind == 'list' or kind == 'none' then lists[#lists + 1] = key else bad[#bad + 1] = key end
end
local suspended = redis.call('EXISTS', 'rq:suspended') == 1
if popped ~= '' then
  redis.call('LREM', popped_from .. ':intermediate', 1, popped)
  if suspended or (mode[popped_from] == 't' and not is_ours(popped)) then
    redis.call('LPUSH', popped_from, popped)
    if not suspended then return {2, {popped_from}, bad} end
  end
end
if suspended then return {1, {}, bad} end
local taken = {}
if popped ~= '' then
  taken[1] = popped_from
  taken[2] = {popped}
  if not is_ours(popped) then
    redis.call('RPUSH', popped_from .. ':intermediate', popped)
    return {0, taken, bad}
  end
  most = most - 1
end
for _, key in ipairs(lists) do
  if most <= 0 then break end
  local ids = redis.call('LRANGE', key, 0, most - 1)
  local ours = #ids
  for number, id in ipairs(ids) do
    if not is_ours(id) then
      ours = number - 1
      break
    end
  end
  if ours > 0 then
    redis.call('LTRIM', key, ours, -1)
    taken[#taken + 1] = key
    taken[#taken + 1] = ours == #ids and ids or {unpack(ids, 1, ours)}
    most = most - ours
  elseif #ids > 0 and mode[key] == 'a' then
    ours = #ids
  elseif #ids > 0 and #taken == 0 and mode[key] == 't' then
    return {2, {key}, bad}
  elseif #ids > 0 and #taken == 0 then
    redis.call('LPOP', key)
    redis.call('RPUSH', key .. ':intermediate', ids[1])
    return {0, {key, {ids[1]}}, bad}
  end
  if ours < #ids and mode[key] ~= 'a' then break end
end
return {0, taken, bad}
"""
# Gives a plain RQ job back whose worker has died, if RQ has not begun with it: it is then still in the intermediate
# list, and has no execution.
#
# KEYS: the list, the intermediate list, the job's executions. ARGV: id.
_GIVE_BACK_UNBEGUN = """
if redis.call('EXISTS', KEYS[3]) == 0 and redis.call('LREM', KEYS[2], 1, ARGV[1]) > 0 then
  redis.call('LPUSH', KEYS[1], ARGV[1])
  return 1
end
return 0
"""
# ARGV: RQ ids. Answers with those that have dependents.
_CLEAR = """
local keys, dependents, awaited = {}, {}, {}
for place, id in ipairs(ARGV) do
  keys[place] = 'rq:job:' .. id
  dependents[place] = keys[place] .. ':dependents'
end
redis.call('UNLINK', unpack(keys))
if redis.call('EXISTS', unpack(dependents)) > 0 then
  for place, key in ipairs(dependents) do
    if redis.call('EXISTS', key) == 1 then awaited[#awaited + 1] = ARGV[place] end
  end
end
return awaited
"""
# Lua takes no more than some thousand arguments at once.
_CLEARED_TOGETHER = 1000
# Does nothing where the hash has just been cleared: made anew, it would stay for ever. Since version 3 RQ takes what
# a worker runs from its executions.
#
# KEYS: the job, its execution, the worker's executions. ARGV: RQ id, name of the worker, now, seconds to keep them.
_TELL_OF_JOB = """
if redis.call('EXISTS', KEYS[1]) == 0 then return end
redis.call('HSET', KEYS[1], 'worker_name', ARGV[2], 'status', 'started')
redis.call('HSETNX', KEYS[2], 'created_at', ARGV[3])
redis.call('HSET', KEYS[2], 'id', 'drain', 'job_id', ARGV[1], 'worker_name', ARGV[2], 'last_heartbeat', ARGV[3])
redis.call('SADD', KEYS[3], ARGV[1] .. ':drain')
redis.call('EXPIRE', KEYS[2], ARGV[4])
redis.call('EXPIRE', KEYS[3], ARGV[4])
"""


class Taken(NamedTuple):
    """An id that has been taken from its queue's list.

    Attributes:
        rq_id: As it was in the list; bytes that are no UTF-8 are escaped, as in the names of files.
        queue: Name of the queue.
        job_id: Of a tracked job of ours; None of anybody else's.
        delivery: The number of its delivery.
    """

    rq_id: str
    queue: str
    job_id: int | None
    delivery: int


class Consumer:
    """A worker's connections to Redis: one to wait on, one for all else.

    `wait` is for one thread; the rest is safe to use from several. Every method raises UnavailableError as those
    of `Wire` do.

    Args:
        redis_url: Where.
        namespace: First part of our RQ ids.
        queues: Names of the queues, the first of which comes first.
        installation: Tells the UUID of the worker's database, when an id has to be judged; without it every id
            that is not of the namespace's tracked jobs counts as a plain RQ job.
        only_tracked: Names of the queues in which nothing else runs.

    Attributes:
        more_to_judge: The last `take` has stopped before it found what it may take.
    """

    def __init__(
        self,
        redis_url: str,
        namespace: str,
        queues: Sequence[str],
        *,
        installation: Callable[[], str] | None = None,
        only_tracked: Collection[str] = (),
    ) -> None:
        self.where = describe(redis_url)
        self._prefix = f"{namespace}-"
        # More digits than these no id of ours will ever have, and PostgreSQL could not take.
        self._tracked_id = re.compile(rf"{re.escape(namespace)}-(\d{{1,18}})-(\d{{1,18}})".encode())
        self._keys = [f"rq:queue:{queue}" for queue in queues]
        self._redis = connect(redis_url)
        self._take = self._redis.register_script(_TAKE)
        self._tell_of_job = self._redis.register_script(_TELL_OF_JOB)
        self._give_back_unbegun = self._redis.register_script(_GIVE_BACK_UNBEGUN)
        self._clear = self._redis.register_script(_CLEAR)
        self.more_to_judge = False
        self._installation = installation
        self._only_tracked = {f"rq:queue:{queue}" for queue in only_tracked}
        self._strangers = Strangers(self._redis)
        # Keys whose heads are ids of other databases, and until when they are not looked at.
        self._left_alone: dict[str, float] = {}
        self._bad: list[str] = []
        patient = connect(redis_url)
        patient.connection_pool.connection_kwargs["socket_timeout"] = WAIT_SECONDS + _ANSWER_SECONDS
        self._patient = patient
        self._waiter: redis.Redis | None = None
        self._waiter_id: int | None = None

    @property
    def some_are_left_out(self) -> bool:
        """Whether there are keys that `wait` does not wait for; `take` looks whether it is still so."""
        return len(self._awaited()) < len(self._keys)

    def take(self, most: int, popped: tuple[str, bytes] | None = None) -> list[Taken] | None:
        """Take up to so many ids from the heads of the lists, the first queue first, without waiting.

        An id that is none of our tracked jobs' is taken alone, and goes by way of RQ's intermediate list.

        Args:
            most: How many.
            popped: What `wait` has returned; it comes first.

        Returns:
            None while RQ is suspended; `popped` is then back in its list.
        """
        key = _NOTHING
        for _ in range(_MOST_ROUNDS):
            state, lists = self._ask(most, popped)
            key = lists[0].decode() if lists else key
            popped = None
            if state == _SUSPENDED:
                return None
            if state == _TO_BE_SIFTED:
                taken = self._sift(key.removeprefix("rq:queue:"))
            else:
                taken = self._judged(self._read(lists) if state == _TAKEN else [])
            if taken or not (self._judges and state in (_TO_BE_SIFTED, _TAKEN) and lists):
                return taken
        # The next look is at the other lists.
        self._leave_alone(key)
        self.more_to_judge = True
        return []

    def _ask(self, most: int, popped: tuple[str, bytes] | None) -> tuple[int, list[Any]]:
        key, rq_id = popped or ("", b"")
        modes = "".join(map(self._mode, self._keys))
        with reachable(self.where):
            answer: Any = self._take(self._keys, [most, self._prefix, rq_id, key, modes])
        self._report([bad.decode() for bad in answer[2]])
        self.more_to_judge = False
        return answer[0], answer[1]

    @property
    def _judges(self) -> bool:
        return self._installation is not None

    def _mode(self, key: str) -> str:
        if self._is_left_alone(key):
            return "a"
        return "t" if key in self._only_tracked else "p"

    def _leave_alone(self, key: str) -> None:
        self._left_alone[key] = monotonic() + _LEAVE_ALONE_SECONDS

    def _is_left_alone(self, key: str) -> bool:
        return self._left_alone.get(key, 0.0) > monotonic()

    def _read(self, lists: list[Any]) -> list[Taken]:
        pairs = iter(lists)
        return [
            self._taken(rq_id, key.decode().removeprefix("rq:queue:"))
            for key, rq_ids in zip(pairs, pairs, strict=True)
            for rq_id in rq_ids
        ]

    def _judged(self, taken: list[Taken]) -> list[Taken]:
        """What was taken; an id that is none of the namespace's only if it is ours all the same, or plain."""
        if self._installation is None or len(taken) != 1 or taken[0].job_id is not None:
            return taken
        (alone,) = taken
        try:
            with reachable(self.where):
                (verdict,) = self._strangers.judge([_raw(alone.rq_id)], self._installation())
        except UnavailableError:
            with suppress(UnavailableError):
                self.give_back([(alone.queue, alone.rq_id)])
            raise
        if verdict.kind is Kind.OURS:
            self.discard(alone)
            return [self._older(alone.queue, _raw(alone.rq_id), verdict.job_id)]
        if verdict.kind is Kind.FOREIGN:
            self.give_back([(alone.queue, alone.rq_id)])
            return self._sift(alone.queue)
        return taken

    def _sift(self, queue: str) -> list[Taken]:
        key = f"rq:queue:{queue}"
        installation = self._installation() if self._installation is not None else ""
        with reachable(self.where):
            taken, is_foreign = self._strangers.sift(
                queue, self._tracked_id, installation, only_tracked=key in self._only_tracked
            )
        if is_foreign:
            self._leave_alone(key)
        return [self._older(queue, rq_id, job_id) for rq_id, job_id in taken]

    @staticmethod
    def _older(queue: str, rq_id: bytes, job_id: int) -> Taken:
        """A delivery of ours whose id has the form of an older namespace."""
        delivery = re.search(rb"-(\d{1,18})$", rq_id)
        text = rq_id.decode(errors="surrogateescape")
        return Taken(text, queue, job_id, int(delivery[1]) if delivery else 0)

    def wait(self, seconds: float = WAIT_SECONDS) -> tuple[str, bytes] | None:
        """Pop one id as soon as there is one; None if none comes in time, or `end_wait` is called.

        Of a single queue it goes to RQ's intermediate list until it is given to `take`, so that a plain RQ job is
        not lost with its worker.
        """
        try:
            with reachable(self.where):
                return self._popped(min(seconds, WAIT_SECONDS))
        except UnavailableError:
            self._waiter_id = None
            raise

    def _popped(self, seconds: float) -> tuple[str, bytes] | None:
        self.more_to_judge = False
        if self._waiter is None:
            self._waiter = self._patient.client()  # type: ignore[no-untyped-call]
        if self._waiter_id is None:
            self._waiter_id = self._waiter.client_id()
        # Those that are no lists, or are left alone, are looked at again soon, by `take`.
        keys = self._awaited()
        if len(keys) < len(self._keys):
            seconds = min(seconds, _LOOK_AGAIN_SECONDS)
        if len(self._keys) == len(keys) == 1:
            (key,) = keys
            to = f"{key}:intermediate"
            moved: Any = self._waiter.execute_command("BLMOVE", key, to, "LEFT", "RIGHT", seconds)
            return (key, moved) if moved is not None else None
        popped: Any = self._waiter.execute_command(
            "BLPOP", *(keys or self._not_left_alone() or [_NOTHING]), seconds
        )
        return (popped[0].decode(), popped[1]) if popped is not None else None

    def _awaited(self) -> list[str]:
        return [key for key in self._not_left_alone() if key not in self._bad]

    def _not_left_alone(self) -> list[str]:
        return [key for key in self._keys if not self._is_left_alone(key)]

    def end_wait(self) -> None:
        """Let `wait` return at once, in whatever thread it is; nothing that it has popped is lost.

        From a Redis that stands still it is broken off: `wait` then raises UnavailableError.
        """
        waiter, waiter_id = self._waiter, self._waiter_id
        if waiter is None or waiter_id is None:
            return
        try:
            with reachable(self.where):
                self._redis.client_unblock(waiter_id)
        except UnavailableError:
            sock = getattr(waiter.connection, "_sock", None)
            if sock is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def give_back(self, taken: Sequence[tuple[str, str]]) -> None:
        """Put ids back to the heads of their lists, in the order in which they were: queue and RQ id of each."""
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for queue, rq_id in reversed(taken):
                key, given = f"rq:queue:{queue}", _raw(rq_id)
                pipeline.lrem(f"{key}:intermediate", 1, given)  # type: ignore[arg-type]
                pipeline.lpush(key, given)
            pipeline.execute()

    def give_back_unbegun(self, taken: Taken) -> bool:
        """Put a plain RQ job back that RQ has not begun with; returns whether that is so."""
        key = f"rq:queue:{taken.queue}"
        keys: list[Any] = [key, f"{key}:intermediate", b"rq:executions:" + _raw(taken.rq_id)]
        with reachable(self.where):
            return bool(self._give_back_unbegun(keys, [_raw(taken.rq_id)]))

    def sorted_out(self, refused: Sequence[Taken]) -> tuple[list[Taken], list[Taken]]:
        """Plain RQ jobs among ids that have the form of ours and that no claim wanted; those are to be run.

        They are kept in RQ's intermediate list from now on. In queues where only tracked jobs run, they become failed
        jobs of RQ's instead. The hashes of all others are deleted, but for those that RQ jobs depend on.

        Returns:
            The plain jobs to be run, and the deliveries of tracked jobs that RQ jobs depend on.
        """
        if not refused:
            return [], []
        with reachable(self.where):
            # An installation that is nobody's: only what is plain is asked for.
            verdicts = self._strangers.judge([_raw(each.rq_id) for each in refused], "")
            plain = [
                each for each, verdict in zip(refused, verdicts, strict=True) if verdict.kind is Kind.PLAIN
            ]
            for each in plain:
                key = f"rq:queue:{each.queue}"
                if key in self._only_tracked:
                    self._redis.lpush(key, _raw(each.rq_id))
                    self._strangers.refuse(each.queue, _raw(each.rq_id))
                else:
                    self._redis.rpush(f"{key}:intermediate", _raw(each.rq_id))
        tracked = [each for each in refused if each not in plain]
        awaited = {
            rq_id for rq_id, is_awaited in self._depended_on([each.rq_id for each in tracked]) if is_awaited
        }
        self.clear([each.rq_id for each in tracked if each.rq_id not in awaited])
        to_be_run = [
            each._replace(job_id=None, delivery=0)
            for each in plain
            if f"rq:queue:{each.queue}" not in self._only_tracked
        ]
        return to_be_run, [each for each in tracked if each.rq_id in awaited]

    def forget_worker(self, name: str, pid: int, queues: Collection[str]) -> None:
        """Take a worker of RQ's whose process has died out of RQ's list."""
        with reachable(self.where):
            forget_worker(self._redis, name, pid, queues)

    def clear(self, rq_ids: Sequence[str]) -> list[str]:
        """Delete the hashes of deliveries whose jobs have ended.

        Returns:
            Those on which plain RQ jobs depend. Whatever comes to depend on one later finds no hash, which is to RQ a
            dependency that is met.
        """
        awaited: list[bytes] = []
        for first in range(0, len(rq_ids), _CLEARED_TOGETHER):
            with reachable(self.where):
                awaited += self._clear(args=rq_ids[first : first + _CLEARED_TOGETHER])
        return [rq_id.decode() for rq_id in awaited]

    def clear_unless_awaited(self, rq_ids: Sequence[str]) -> None:
        """Delete the hashes of deliveries whose jobs will be delivered again, but for those that RQ jobs depend on."""
        if rq_ids:
            self.clear([rq_id for rq_id, is_awaited in self._depended_on(rq_ids) if not is_awaited])

    def _depended_on(self, rq_ids: Sequence[str]) -> list[tuple[str, bool]]:
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for rq_id in rq_ids:
                pipeline.exists(f"rq:job:{rq_id}:dependents")
            return list(zip(rq_ids, map(bool, pipeline.execute()), strict=True))

    def discard(self, taken: Taken) -> None:
        """Forget an id whose job nobody knows any more."""
        with reachable(self.where):
            given: Any = _raw(taken.rq_id)
            self._redis.lrem(f"rq:queue:{taken.queue}:intermediate", 1, given)

    def tell(
        self, worker_key: str, fields: Mapping[str, str], counts: Mapping[str, float], ttl_seconds: int
    ) -> None:
        """Let RQ's tools see what a worker does: fields of its hash ("" for none), and what its counts grow by."""
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for name, text in fields.items():
                if name == "current_job":
                    pipeline.delete(f"{worker_key}:executions")
                if text == "":
                    pipeline.hdel(worker_key, name)
                else:
                    pipeline.hset(worker_key, name, text)
            for name, more in counts.items():
                pipeline.hincrbyfloat(worker_key, name, more)
            pipeline.expire(worker_key, ttl_seconds)
            pipeline.execute()

    def tell_of_job(self, rq_id: str, worker_name: str) -> None:
        """Let RQ's tools see who runs a job, if its hash is still there."""
        keys = [f"rq:job:{rq_id}", f"rq:execution:{rq_id}:drain", f"rq:worker:{worker_name}:executions"]
        with reachable(self.where):
            self._tell_of_job(keys, [rq_id, worker_name, time(), _EXECUTION_SECONDS])

    def close(self) -> None:
        """Close the connections."""
        if self._waiter is not None:
            self._waiter.close()
        self._patient.close()
        self._redis.close()

    def _taken(self, rq_id: bytes, queue: str) -> Taken:
        match = self._tracked_id.fullmatch(rq_id)
        text = rq_id.decode(errors="surrogateescape")
        return Taken(text, queue, int(match[1]), int(match[2])) if match else Taken(text, queue, None, 0)

    def _report(self, bad: list[str]) -> None:
        for key in bad:
            if key not in self._bad:
                log.error(
                    "%s is no list; its jobs wait until you rename that key", key, extra={"event": "no_list"}
                )
        self._bad = bad


def _raw(rq_id: str) -> bytes:
    return rq_id.encode(errors="surrogateescape")

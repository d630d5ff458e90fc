"""The enqueuer's side of the wire: jobs in RQ's format, and the lists that they are appended to."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import chain, count, islice
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from drain.errors import ConfigError, OwnedByAnotherError, UnavailableError, UndeliverableError
from drain.failpoints import FailurePoint, failpoint
from drain.visible import visible
from drain.wire import owners
from drain.wire.earlier import Earlier, Fate, Gone
from drain.wire.owners import QUEUE_OWNERS, RECOVERING, STRANGE, Owner, read_owner
from drain.wire.workers import count_workers

log = logging.getLogger(__name__)

ENTRY_POINT = "workers.entry.execute"
# Module each attribute of which is the entry point, so that RQ's tools can show a job by a name of its own.
NAMED = "drain.rq"
# The pickle of (name, None, (job id, installation), {}): a template, so that nothing has to be pickled per job. The id
# is an integer of five bytes, the installation the 16 bytes of its UUID: with a value of more than 64 bytes Redis keeps
# a hash in a form that takes 2.5 times the memory; measured, a third fewer jobs pushed a second.
_CALL = b"(\x8c%c%bN\x8a\x05"
_CALL_END = b"C\x10%b\x86}t."
_LONGEST_NAME = 64 - len(_CALL % (0, b"")) - 5 - len(_CALL_END % bytes(16)) - len(f"{NAMED}.")
_LARGEST_ID = 2**39 - 1
# Names that can follow the module's. What Python itself finds in a module begins with two underscores.
_SHOWABLE = re.compile(r"(?!__)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# The same of the entry point itself, with the id in decimal: for workers of a version without the module.
_CALL_BY_ENTRY = b"(\x8c%c%bNI%%d\nC\x10%%b\x86}t." % (len(ENTRY_POINT), ENTRY_POINT.encode())
# What older versions wrote: the id alone, in the textual protocol.
_CALL_BY_ID = b"(V%b\nN(I%%d\nt(dt." % ENTRY_POINT.encode()

# Pickled reference to the function itself, in the field where RQ once kept results. A worker reads it before it forks,
# so that every child finds the entry point imported: a third of what a job costs an `rq worker` without settings. RQ
# passes over what it cannot read there, so whoever lacks this package shows our jobs all the same.
_INHERITED = "c{}\\n{}\\n.".format(NAMED, ENTRY_POINT.rpartition(".")[2])

# RQ's own default, spelled out: without a timeout in the hash an RQ worker fails at its first heartbeat.
_FORWARD_TIMEOUT_SECONDS = 180
# Ends what even the worker's own timeout could not interrupt, once the lease is over too.
_OUTER_TIMEOUT_MARGIN_SECONDS = 60
_NO_TIMEOUT = -1
# RQ sets an alarm, and the system counts its seconds in 32 bits.
_LONGEST_TIMEOUT_SECONDS = 2**31 - 1
# Upper bound for a wait on Redis that a URL may ask for.
_LONGEST_WAIT_SECONDS = 3600
# RQ keeps the hash this long after a worker has run it, or has failed to. 0 would cost nine more round trips.
_TRACKED_RESULT_TTL_SECONDS = 60
# RQ keeps a failed delivery this long: for people to read, and for redelivery to see that RQ has stopped the job, whose
# lease may last for hours. `dead_jobs` keeps the job itself until a person has looked.
FAILED_TTL_SECONDS = 86_400

# What is read from Redis are bytes, some of them pickled, whatever the URL says.
BYTES = {"decode_responses": False, "encoding": "utf-8", "encoding_errors": "strict"}

# How far to look for a job of ours behind those of others.
_LOOK_AHEAD = 50
# Ids of a list that are read at a time: a millisecond of Redis' time.
_IDS_PER_PAGE = 5000
# The same where the hash of each is read.
_HASHES_PER_PAGE = 500

# One script call writes a slice of a batch: all the hashes first, then one push, so no id is ever in a
# list without its hash. At a thousand jobs a call Redis serves its other clients every few milliseconds.
# Measured beside a pipeline of single commands: a tenth of the time in Python, the same in Redis.
#
# Jobs of a queue whose key is no list are left out, and those of a queue that another database feeds. If such a
# queue's key is among KEYS, nothing is written at all; nor if another database feeds the namespace.
JOBS_PER_CALL = 1000
_PUSH = f"""
local now, mine, label, marker = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local no_lists, foreign = {{}}, {{}}
{STRANGE}
local function is_ours(queue)
  if mine == '' then return true end
  local owner = redis.call('HGET', '{QUEUE_OWNERS}', queue)
  if is_strange(owner) then
    foreign[#foreign + 1] = queue
    foreign[#foreign + 1] = owner
    return false
  end
  if not owner then redis.call('HSET', '{QUEUE_OWNERS}', queue, mine .. ' ' .. label) end
  return true
end
if mine ~= '' then
  local owner = redis.call('GET', marker)
  if is_strange(owner) then return {{owner, {{}}, {{}}}} end
  if not owner then redis.call('SET', marker, {RECOVERING}) end
end
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local queue = string.sub(key, #'rq:queue:' + 1)
  if is_ours(queue) and kind ~= 'list' and kind ~= 'none' then no_lists[#no_lists + 1] = queue end
end
if #no_lists + #foreign > 0 then return {{'', no_lists, foreign}} end
local ids_of = {{}}
local function write(id, timeout, description, data, result_ttl, queue)
  local key = 'rq:job:' .. id
  if result_ttl == '' then
    redis.call('HSET', key, 'status', 'queued', 'origin', queue, 'created_at', now, 'enqueued_at', now,
      'timeout', timeout, 'description', description, 'data', data)
  else
    redis.call('HSET', key, 'status', 'queued', 'origin', queue, 'created_at', now, 'enqueued_at', now,
      'timeout', timeout, 'description', description, 'data', data, 'result_ttl', result_ttl,
      'failure_ttl', '{FAILED_TTL_SECONDS}', 'result', '{_INHERITED}')
  end
end
for i = 5, #ARGV, 6 do
  local queue = ARGV[i + 5]
  local ids = ids_of[queue]
  if ids == nil then
    ids = is_ours(queue) and {{}}
    ids_of[queue] = ids
  end
  if ids then
    write(unpack(ARGV, i, i + 5))
    ids[#ids + 1] = ARGV[i]
  end
end
for queue, ids in pairs(ids_of) do
  if ids then
    redis.call('SADD', 'rq:queues', 'rq:queue:' .. queue)
    local pushed = redis.pcall('RPUSH', 'rq:queue:' .. queue, unpack(ids))
    if type(pushed) == 'table' and pushed.err then
      if not string.find(pushed.err, 'WRONGTYPE') then return pushed end
      no_lists[#no_lists + 1] = queue
    end
  end
end
return {{'', no_lists, foreign}}
"""
# A queue that another database feeds is reported again after so long.
_REPORT_SECONDS = 600.0


class Delivery(NamedTuple):
    """One RQ job, ready to be pushed: the script's arguments in their order.

    Attributes:
        rq_id: Its id in RQ.
        timeout: Seconds after which RQ itself gives the job up; -1 for never.
        description: What RQ's tools show for it.
        data: The call, pickled.
        result_ttl: Seconds for which RQ keeps the hash of a job that it has run; "" for its default.
        queue: Name of the queue.
    """

    rq_id: str
    timeout: int
    description: str
    data: bytes
    result_ttl: int | str
    queue: str


def tracked(
    namespace: str,
    job_id: int,
    queue: str,
    job_name: str,
    timeout_seconds: int | None,
    delivery: int,
    installation: str = "",
    *,
    by_entry: bool = False,
) -> Delivery:
    """The RQ job of a row in `inflight_jobs`: a call of our one entry point with the row's id.

    Args:
        installation: UUID of the row's database, so that no worker of another one claims the id there; "" for a
            call as older versions wrote it.
        by_entry: Call the entry point by its own name instead of the job's, which only this version resolves.
    """
    shown, call = _named(job_name)
    if not installation:
        data = _CALL_BY_ID % job_id
    elif by_entry or not 0 <= job_id <= _LARGEST_ID:
        data = _CALL_BY_ENTRY % (job_id, _uuid_bytes(installation))
    else:
        data = call + job_id.to_bytes(5, "little") + _call_end(installation)
    outer = _NO_TIMEOUT
    if timeout_seconds is not None:
        outer = min(timeout_seconds + _OUTER_TIMEOUT_MARGIN_SECONDS, _LONGEST_TIMEOUT_SECONDS)
    rq_id = tracked_id(namespace, job_id, delivery)
    return Delivery(rq_id, outer, f"{shown} #{job_id}", data, _TRACKED_RESULT_TTL_SECONDS, queue)


@cache
def _uuid_bytes(installation: str) -> bytes:
    return UUID(installation).bytes


@cache
def _call_end(installation: str) -> bytes:
    return _CALL_END % _uuid_bytes(installation)


@lru_cache(maxsize=10_000)
def _named(job_name: str) -> tuple[str, bytes]:
    """A job's name as RQ's tools print it, and its call up to the id."""
    name = f"{NAMED}.{_end_of(job_name)}" if _SHOWABLE.fullmatch(job_name) else ENTRY_POINT
    encoded = name.encode()
    return _shown(job_name), _CALL % (len(encoded), encoded)


def _end_of(job_name: str) -> str:
    """As many of a name's last parts as there is room for; of one that is too long itself, its beginning."""
    while len(job_name) > _LONGEST_NAME and "." in job_name:
        job_name = job_name.partition(".")[2]
    room = _LONGEST_NAME - len("…".encode())
    return job_name if len(job_name) <= _LONGEST_NAME else f"{job_name[:room]}…"


def _shown(job_name: str) -> str:
    """A name as RQ prints it: what a terminal would obey, as its escape."""
    # Asked of nearly all names, and a tenth of what it takes to look for the characters.
    return job_name if job_name.isascii() and job_name.isprintable() else visible(job_name)


def tracked_id(namespace: str, job_id: int, delivery: int) -> str:
    """The RQ id of one delivery of a job."""
    return f"{namespace}-{job_id}-{delivery}"


def forwarded(
    namespace: str,
    job_id: int,
    queue: str,
    job_name: str,
    job_args: str,
    job_kwargs: str,
    timeout_seconds: int | None,
) -> Delivery:
    """The RQ job that `Queue.enqueue(job_name, *args, **kwargs)` would have made.

    Args:
        job_args: JSON array.
        job_kwargs: JSON object.

    Raises:
        UndeliverableError: The arguments are JSON, but nothing that Python can read or pickle.
    """
    try:
        call = (job_name, None, tuple(json.loads(job_args)), json.loads(job_kwargs))
        data = pickle.dumps(call, protocol=pickle.HIGHEST_PROTOCOL)
    except (ValueError, RecursionError, pickle.PicklingError) as error:
        raise UndeliverableError(f"the arguments cannot be encoded for RQ: {error}") from error
    timeout = timeout_seconds or _FORWARD_TIMEOUT_SECONDS
    rq_id = f"{namespace}-{job_id}-forward"
    return Delivery(rq_id, timeout, f"{_shown(job_name)} #{job_id}", data, "", queue)


def delivery_number(namespace: str, rq_id: str) -> int | None:
    """The delivery number in the RQ id of a tracked job of ours; None for the ids of anybody else."""
    # No more digits than PostgreSQL could take: Python refuses to read some thousands of them.
    match = re.fullmatch(rf"{re.escape(namespace)}-[0-9]{{1,18}}-([0-9]{{1,18}})", rq_id)
    return int(match[1]) if match else None


class Producer:
    """A connection to Redis that speaks RQ. Safe to use from several threads.

    Every method raises UnavailableError when Redis cannot be reached, does not answer within five
    seconds, or refuses: out of memory, read-only, loading, wrong password.

    Attributes:
        namespace: First part of our RQ ids.
        installation: UUID of the database that feeds, which `identify` sets; "" for somebody who only looks.
    """

    def __init__(self, redis_url: str, namespace: str) -> None:
        self.namespace = namespace
        self.where = describe(redis_url)
        self._redis = connect(redis_url)
        self._push = self._redis.register_script(_PUSH)
        self._earlier = Earlier(self._redis)
        self.installation = ""
        self._label = ""
        self._reported_at: dict[str, float] = {}
        self._mark = self._redis.register_script(owners.MARK)
        self._marker_key = f"drain:{namespace}"
        # More digits than these no id of ours will ever have, and PostgreSQL could not take.
        self._tracked_id = re.compile(rf"{re.escape(namespace)}-(\d{{1,18}})-(\d{{1,18}})".encode())

    def identify(self, installation: str, label: str) -> None:
        """Say which database feeds through this wire: the namespace and the queues are claimed for it.

        Args:
            installation: Its UUID.
            label: Database and server, for people who meet it elsewhere.
        """
        self.installation, self._label = installation, label

    def push(self, deliveries: Iterable[Delivery]) -> Counter[str]:
        """Write the jobs and append them to their queues' lists, in the given order within a queue.

        When this returns, all of them have been taken by Redis, but for those of queues that are refused: the key
        is no list, or another database feeds the queue. When it raises, some may have been taken: pushing them
        again is harmless for tracked jobs, and at least once for forwarded ones.

        Returns:
            Number of jobs of each queue that were refused.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace; what was not yet pushed is not pushed.
        """
        rest = iter(deliveries)
        refused: Counter[str] = Counter()
        while jobs := list(islice(rest, JOBS_PER_CALL)):
            # What is refused is found again, and pushed, once nothing is in its way.
            if queues := set(self._send(jobs)):
                refused.update(job.queue for job in jobs if job.queue in queues)
            failpoint(FailurePoint.PUSHED_A_SLICE)
        return refused

    def push_together(self, deliveries: Sequence[Delivery]) -> list[str]:
        """Write and append jobs in one call: all of them or none.

        When this raises because Redis refused, none has been taken; when no answer came, all or none.

        Args:
            deliveries: At most `JOBS_PER_CALL`.

        Returns:
            Names of the queues whose key is no list, or that another database feeds. If there are any, none of the
            jobs has been taken.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace; nothing is pushed.
        """
        return self._send(deliveries, sorted({f"rq:queue:{delivery.queue}" for delivery in deliveries}))

    def _send(self, deliveries: Sequence[Delivery], keys: Sequence[str] = ()) -> list[str]:
        about_us = (_now(), self.installation, self._label, self._marker_key)
        with reachable(self.where):
            answer: Any = self._push(keys=keys, args=[*about_us, *chain.from_iterable(deliveries)])
        owner, no_lists, foreign = answer
        if owner:
            raise self._fed_by_another(read_owner(owner))
        _report(no_lists)
        pairs = iter(foreign)
        others = {queue.decode(): read_owner(text) for queue, text in zip(pairs, pairs, strict=True)}
        self._report_others(others)
        return [*(queue.decode() for queue in no_lists), *others]

    def fates(self, rq_ids: Sequence[str]) -> list[Fate]:
        """What RQ says of deliveries that did not come back, in one round trip."""
        with reachable(self.where):
            return self._earlier.look(rq_ids)

    def carry_dependents(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Let plain RQ jobs that depend on an earlier delivery depend on the later one; returns how many these are."""
        with reachable(self.where):
            return self._earlier.carry(pairs)

    def forget(self, gone: Sequence[Gone]) -> None:
        """Delete what RQ knows of deliveries that have been replaced by later ones."""
        if gone:
            with reachable(self.where):
                self._earlier.forget(gone)

    def depth(self, queue: str) -> int:
        """How many ids the queue's list holds; 0 if the key is no list."""
        (length,) = self._of_each([queue], lambda pipeline, key: pipeline.llen(key))
        return 0 if isinstance(length, redis.ResponseError) else int(length)

    def workers(self, queues: Sequence[str]) -> dict[str, int]:
        """Number of live workers of each queue that take tracked jobs, whoever started them."""
        with reachable(self.where):
            return count_workers(self._redis, queues)

    def lowest_deliveries(self, queues: Sequence[str], *, up_to: int) -> dict[str, int | None]:
        """For each queue the delivery number that the next worker pops; one round trip for all.

        None if the list holds none of ours. 0 if that cannot be told: the key is no list, or so many jobs of others
        stand at its head that ours may be behind them. Numbers above `up_to` are none of ours.
        """
        heads = self._of_each(queues, lambda pipeline, key: pipeline.lrange(key, 0, _LOOK_AHEAD - 1))
        return {queue: self._lowest(head, up_to) for queue, head in zip(queues, heads, strict=True)}

    def queues(self) -> set[str]:
        """Names of all queues that RQ knows."""
        with reachable(self.where):
            keys: Any = self._redis.smembers("rq:queues")
        return {key.decode(errors="replace").removeprefix("rq:queue:") for key in keys}

    def listed(self, queue: str) -> Iterator[list[tuple[int, int]]]:
        """Job id and delivery number of all tracked jobs of ours in the queue's list, in pages.

        What is in the list from the first page to the last is in one of them, whatever workers pop and the
        leader pushes meanwhile; it may be in two. A key that is no list has no pages.
        """
        # From the tail to the head: places are counted from the tail, so a pop moves nothing, and a push
        # moves the rest towards the pages to come. Read the other way, each pop would hide an id from us.
        for last in count(-1, -_IDS_PER_PAGE):
            rq_ids = self._page(queue, last - _IDS_PER_PAGE + 1, last)
            if not rq_ids:
                return
            ours = filter(None, map(self._tracked_id.fullmatch, rq_ids))
            yield [(int(match[1]), int(match[2])) for match in ours]

    def _page(self, queue: str, first: int, last: int) -> list[bytes]:
        with reachable(self.where):
            try:
                ids: Any = self._redis.lrange(f"rq:queue:{queue}", first, last)
            except redis.ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                return []
        return list(ids)

    def _lowest(self, head: list[bytes] | redis.ResponseError, up_to: int) -> int | None:
        if isinstance(head, redis.ResponseError):
            return 0
        numbers = (delivery_number(self.namespace, rq_id.decode(errors="replace")) for rq_id in head)
        unknown = None if len(head) < _LOOK_AHEAD else 0
        return next((number for number in numbers if number is not None and number <= up_to), unknown)

    def _of_each(self, queues: Sequence[str], ask: Callable[[Any, str], object]) -> list[Any]:
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for queue in queues:
                ask(pipeline, f"rq:queue:{queue}")
            return pipeline.execute(raise_on_error=False)

    def mark(self) -> None:
        """Leave a mark, in our name, that is gone when this Redis has lost its memory.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        with reachable(self.where):
            owner: Any = self._mark(args=[self.installation, self._label, self._marker_key])
        if owner:
            raise self._fed_by_another(read_owner(owner))

    def remembers(self) -> bool:
        """Whether the mark is still there.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        with reachable(self.where):
            text: Any = self._redis.get(self._marker_key)
        owner = read_owner(text) if text is not None else None
        if self.installation and owner is not None and owner.installation not in ("", self.installation):
            raise self._fed_by_another(owner)
        return owner is not None and not owner.recovers

    def fed_by_others(self, queues: Collection[str]) -> dict[str, Owner]:
        """Those of these queues that another database feeds, and which; reported as by `push`."""
        if not queues or not self.installation:
            return {}
        with reachable(self.where):
            texts: Any = self._redis.hmget(owners.QUEUE_OWNERS, list(queues))
        named = {queue: read_owner(text) for queue, text in zip(queues, texts, strict=True) if text}
        others = {
            queue: owner
            for queue, owner in named.items()
            if owner.installation not in ("", self.installation)
        }
        self._report_others(others)
        return others

    def take_over(self, installation: str) -> int:
        """Forget that another database feeds our namespace, and any queues: it is gone.

        If it fed any, this Redis counts as one that has lost its memory until all that waits has been pushed again.

        Returns:
            How many of these it fed.
        """
        script = self._redis.register_script(owners.TAKE_OVER)
        with reachable(self.where):
            taken: Any = script(args=[installation, self._marker_key, self.installation, self._label])
        return int(taken)

    def remove_ids_of(self, installation: str) -> Iterator[int]:
        """Take what a database that is gone has pushed from the lists of the queues that it feeds; hashes stay.

        To be called before `take_over`, which forgets which queues these are.

        Returns:
            How many ids have been removed, page by page.
        """
        # It imports this module.
        from drain.wire.strangers import Strangers

        strangers = Strangers(self._redis)
        with reachable(self.where):
            texts: Any = self._redis.hgetall(owners.QUEUE_OWNERS)
        for key in [key for key, text in texts.items() if read_owner(text).installation == installation]:
            queue, kept = key.decode(), 0
            # From the tail to the head, as in `listed`; what has been removed no longer counts.
            while rq_ids := self._page(queue, -kept - _HASHES_PER_PAGE, -kept - 1):
                with reachable(self.where):
                    removed = strangers.remove(queue, rq_ids, installation)
                kept += len(rq_ids) - removed
                yield removed

    def _fed_by_another(self, owner: Owner) -> OwnedByAnotherError:
        return OwnedByAnotherError(
            f"namespace {self.namespace} on Redis at {self.where} is fed by another database, {owner}: set another "
            f"DRAIN_NAMESPACE for this one; or, if that one is gone, run "
            f"`drain run --take-over {owner.installation}` once"
        )

    def _report_others(self, others: Mapping[str, Owner]) -> None:
        now = monotonic()
        for queue, owner in others.items():
            if now - self._reported_at.get(queue, -_REPORT_SECONDS) < _REPORT_SECONDS:
                continue
            self._reported_at[queue] = now
            log.error(
                "queue %s is fed by another database, %s, so jobs of this one wait: name one of the two queues "
                "differently; or, if that database is gone, run `drain run --take-over %s` once",
                queue,
                owner,
                owner.installation,
                extra={"event": "foreign_queue", "queue": queue},
            )

    def ping(self) -> None:
        """Raise unless Redis answers."""
        with reachable(self.where):
            self._redis.ping()

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()


@contextmanager
def reachable(where: str) -> Iterator[None]:
    """Turn what Redis, or the way to it, raises into one line of ours."""
    try:
        yield
    except redis.RedisError as error:
        raise UnavailableError(f"Redis at {where} does not take commands: {error}") from error


def connect(redis_url: str) -> redis.Redis:
    """A client in which every wait is bounded and no command is retried behind our back.

    Raises:
        ConfigError: The URL cannot be read.
    """
    options: dict[str, Any] = {
        "socket_timeout": 5.0,
        "socket_connect_timeout": 2.0,
        "retry": Retry(NoBackoff(), 0),
    }
    if not redis_url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        client = redis.Redis.from_url(redis_url, **options)
        # Whatever the URL says.
        client.connection_pool.connection_kwargs.update(BYTES)
        # Parameters of the URL that nobody knows, or that have no such value, come to light only here.
        client.connection_pool.make_connection()
        given = client.connection_pool.connection_kwargs
        given.get("host", "").encode("idna")
        if not all(
            0 < given[bound] <= _LONGEST_WAIT_SECONDS
            for bound in ("socket_timeout", "socket_connect_timeout")
        ):
            raise ValueError("a wait without a bound")
    except (ValueError, TypeError, LookupError, redis.RedisError):
        raise ConfigError(
            "DRAIN_REDIS_URL cannot be read; it has the form redis://host:6379/0 or unix:///path/redis.sock"
        ) from None
    return client


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _report(refused: Iterable[bytes]) -> None:
    for queue in refused:
        log.error("rq:queue:%s is no list; its jobs wait until you rename that key", queue.decode())


def describe(redis_url: str) -> str:
    """The URL without user, password and parameters, for people to read."""
    parts = urlsplit(redis_url)
    host = parts.hostname or ""
    with suppress(ValueError):
        host += f":{parts.port}" if parts.port else ""
    return f"{host}{parts.path}" or "localhost"

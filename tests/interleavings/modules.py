"""The modules of the protocol that are run: programs, faults, invariants."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from redis import Redis, utils as redis_utils

from drain import queues, stage
from drain.admission import admission, arrivals, hints, keyed_queue, ordering, retries, streams
from drain.admission.rules import Rules
from drain.database import locks, postgres
from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.housekeeping import ReturnedJobs
from drain.enqueuer.redelivery import Redelivery
from drain.tables import dead
from drain.wire import Producer, scripts
from tests.helpers import NAMESPACE, wait_until
from tests.interleavings import history, schedule
from tests.interleavings.gate import Gate
from tests.interleavings.history import Notes
from tests.interleavings.programs import (
    ACTS,
    LIST,
    QUEUE,
    Program,
    application,
    leading,
    operating,
    ticking,
    truncating,
    work,
    working,
)
from tests.interleavings.schedule import Fault, Outcome, Scene

_SETUP = f"""
CREATE TABLE requests (id bigint PRIMARY KEY);
CREATE TABLE effects (id bigint);
{history.LOG}
"""
# A wait is a deadlock or not before the gate looks; a plan does not depend on how often it was executed.
_SETTINGS = ("deadlock_timeout = '10ms'", "plan_cache_mode = force_generic_plan")
_TABLES = (
    *("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs", "stale_finishes", "cancelled_claims"),
    *("crons", "queue_pauses", "queues", "idempotency_keys", "requests", "effects", "changes"),
)
_SEQUENCES = """
SELECT setval('drain_last_delivery', 0, false), setval('drain_pushed_up_to', 0, false),
    setval(pg_get_serial_sequence('staged_jobs', 'id'), 1, false)
"""
_RESET = "; ".join([*(f"DELETE FROM {table}" for table in _TABLES), _SEQUENCES])
_PLACES = " UNION ALL ".join(f"SELECT id FROM {table}" for table in _TABLES[:4])
_WRONG_PLACES = f"""
SELECT coalesce(r.id, job.id), count(job.id), count(r.id) FROM requests AS r FULL JOIN ({_PLACES}) AS job USING (id)
GROUP BY 1 HAVING count(job.id) <> 1 OR count(r.id) <> 1
"""
_WRONG_EFFECTS = """
SELECT id, effects, finishes FROM (SELECT id, count(*) AS effects FROM effects GROUP BY id) AS e
FULL JOIN (SELECT id, count(*) AS finishes FROM finished_jobs WHERE superseded_by IS NULL GROUP BY id) AS f USING (id)
WHERE (effects = 1 AND finishes = 1) IS NOT TRUE
"""
_EXPIRE = """
UPDATE inflight_jobs SET lease_expires_at = clock_timestamp() - interval '1 s'
WHERE id IN (SELECT id FROM inflight_jobs WHERE lease_expires_at IS NOT NULL FOR UPDATE SKIP LOCKED);
UPDATE cancelled_claims SET lease_expires_at = clock_timestamp() - interval '1 s'
WHERE id IN (SELECT id FROM cancelled_claims FOR UPDATE SKIP LOCKED)
"""
_DUE = """
UPDATE inflight_jobs SET next_run_at = now() - interval '1 s'
WHERE id IN (SELECT id FROM inflight_jobs WHERE next_run_at IS NOT NULL FOR UPDATE SKIP LOCKED)
"""
_LEADS = f"SELECT FROM pg_locks WHERE (classid::bigint, objid::bigint) = ({locks.LEADER}) AND granted"
_RUNNING = """
SELECT key, count(*) FROM (
    SELECT key FROM inflight_jobs WHERE next_run_at IS NULL AND key IS NOT NULL
    UNION ALL SELECT key FROM cancelled_claims WHERE lease_expires_at > now()) AS job
GROUP BY GROUPING SETS ((key), ())
"""
_OVERTAKEN = """
SELECT earlier.id, later.id FROM inflight_jobs AS earlier JOIN inflight_jobs AS later USING (key)
WHERE earlier.id < later.id AND earlier.next_run_at IS NOT NULL AND later.next_run_at IS NULL
"""
_NOT_UNIQUE = """
SELECT array_agg(id) FROM inflight_jobs WHERE unique_key IS NOT NULL AND claimed_at IS NULL
GROUP BY job_name, unique_key HAVING count(*) > 1
"""
_LEFT = "SELECT FROM staged_jobs UNION ALL SELECT FROM inflight_jobs"
# A failing queue tries its retries one by one.
_PATIENCE_SECONDS = 30.0
# Its next tick after this one is far away.
_DUE_SCHEDULE = """
INSERT INTO crons (name, job_name, cron, options, next_tick_at)
VALUES ('c', 'm.f', '0 0 1 1 *', jsonb_build_object('queue', 'q'), now())
"""
_STAGED = "SELECT count(DISTINCT id) FROM changes WHERE place = 'staged' AND is_there"
_REQUEST_TICKS = """
INSERT INTO requests SELECT DISTINCT id FROM changes WHERE EXISTS (SELECT FROM crons) ON CONFLICT DO NOTHING
"""
# Scripts for RQ's own jobs and workers, without effect here.
_OF_RQ = ("need_no_hash", "read_status", "move_dependents")
_HASHES = "|".join(hashlib.sha1(scripts.load(name).encode()).hexdigest() for name in _OF_RQ)
_PASSING = (
    rb"^Q....(BEGIN\x00|SAVEPOINT|RELEASE)|^\*\d+\r\n\$\d+\r\n(HELLO|CLIENT|SCRIPT|UNLINK)|drain:whole|LISTEN|"
    # Not the claim, which has it in parentheses.
    rb"SET synchronous_commit = off|[^(]SELECT installation FROM|UPDATE drain_state SET leader|"
    # Rules stay, nothing is paused, and no bulk transaction is open.
    rb"SELECT seen\.\*, changed|SELECT due\.\* FROM unnest|DELETE FROM (queue_pauses|cancelled_claims)|"
    rb"SELECT extract\(epoch|pg_try_advisory_xact_lock\(1785684580, 7\)|" + _HASHES.encode()
)
# The leader reads what to look for, and then decides in a statement that locks.
_READS = (
    rb"|last_value FROM drain_pushed_up_to|drain:owners:queues|SELECT coalesce\(\(SELECT id FROM staged_jobs_ready|"
    rb"SELECT queue, (next_run_at|delivery) FROM inflight_jobs|SELECT known\.queue, oldest\.delivery"
)
# The leader's pauses between two looks, which would let a run depend on the time that its steps take.
_PAUSES: Mapping[Any, tuple[str, ...]] = {
    admission: ("_FOLLOW_SECONDS",),
    arrivals: ("_HINT_PAUSE", "_SWEEP_PAUSE", "_IDLE_SECONDS"),
    hints: ("_PAUSE",),
    keyed_queue: ("_NAP_SECONDS", "_REST_SECONDS"),
    ordering: ("_PAUSE", "_ROUND_SECONDS"),
    retries: ("_PAUSE",),
    streams: ("_ASIDE_SECONDS",),
}


class Laboratory:
    """One database and one Redis behind a gate, used for many schedules."""

    def __init__(self, directory: Path, database_url: str, redis_url: str) -> None:

        self.control = postgres.connect(database_url, "tests")
        self.control.execute(_SETUP)
        for setting in _SETTINGS:
            self.control.execute(f"ALTER DATABASE {self.control.info.dbname} SET {setting}")
        self.last = postgres.connect(database_url, leader.APPLICATION_NAME)
        self._producer = Producer(redis_url, NAMESPACE)
        self.notes = Notes()
        self._answers: dict[str, tuple[int, bool]] = {}
        self.redis: Redis = Redis.from_url(redis_url)
        # Otherwise, the first use of a script is two requests.
        for path in scripts._DIRECTORY.glob("*.lua"):
            self.redis.script_load(scripts.load(path.stem))
            self.redis.script_load(scripts.load("owners", path.stem))
        self.gate = Gate(directory, self.control, unquote(urlsplit(redis_url).path))
        self._pauses = [
            (module, name, getattr(module, name)) for module, names in _PAUSES.items() for name in names
        ]
        for module, name, _ in self._pauses:
            setattr(module, name, 0)
        for module in _with_clocks():
            # A schedule repeats only if all that depends on time does.
            self._pauses.append((module, "monotonic", monotonic))
            module.monotonic = lambda: self.gate.time
        # Each connection reads it from the files of the installation.
        self._pauses.append((redis_utils, "get_lib_version", redis_utils.get_lib_version))
        redis_utils.get_lib_version = cache(redis_utils.get_lib_version)

    def close(self) -> None:
        for module, name, seconds in self._pauses:
            setattr(module, name, seconds)
        self.gate.close()
        self.control.close()
        self.last.close()
        self._producer.close()
        self.redis.close()

    def run(self, module: str, seed: int, repeated: tuple[str, ...] | None = None) -> Outcome:
        """Run one schedule on empty tables."""
        self.notes = Notes()
        self.control.execute(_RESET)
        self._flush()
        return schedule.run(self.gate, MODULES[module].scene(self, Random(seed)), seed, repeated)

    def shrunk(self, module: str, seed: int, outcome: Outcome, tries: int = 300) -> Outcome:
        """Return a shorter schedule that breaks the same."""
        return schedule.shrink(outcome, lambda choices: self.run(module, seed, tuple(choices)), tries)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self.control.execute(statement).fetchall()

    def may_lead(self) -> bool:
        """Look whether the leader's lock is free, if it may have changed."""
        return self._ask("lead", self.gate.statements, lambda: not self.query(_LEADS))

    def has_deliveries(self) -> bool:
        """Look into the list, if it may have changed."""
        return self._ask("deliveries", self.gate.redis_requests, lambda: bool(self.redis.exists(LIST)))

    def _ask(self, name: str, at: int, ask: Callable[[], bool]) -> bool:
        if self._answers.get(name, (-1, False))[0] != at:
            self._answers[name] = at, ask()
        return self._answers[name][1]

    def stage(self, random: Random, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Begin with jobs that are staged or delivered, or one that waits for a retry, or whose worker has died."""
        with self.control.transaction():
            for options in jobs:
                job_id = stage(self.control, "m.f", queue=QUEUE, **options)
                self.control.execute("INSERT INTO requests VALUES (%s)", (job_id,))
        start = random.choice(["staged", "delivered", "delivered", "failed", "claimed"])
        if jobs and start != "staged":
            with self._leading() as (enqueuer, _):
                enqueuer.drain()
            popped: Any = self.redis.lpop(LIST) if start in {"failed", "claimed"} else None
            if popped:
                end = "retry" if start == "failed" else ""
                work(self.control, "the first", popped.decode(), self.notes, end=end)

    @contextmanager
    def _leading(self) -> Iterator[tuple[Enqueuer, Redelivery]]:
        state = wait_until(lambda: leader.try_to_lead(self.last))
        assert state is not None
        try:
            with Enqueuer(self.last, self._producer, state) as enqueuer:
                redelivery = Redelivery(enqueuer, lost_after_seconds=0)
                redelivery.recover()
                yield enqueuer, redelivery
        finally:
            self.last.execute("SELECT pg_advisory_unlock_all()")

    def in_one_place(self) -> Iterator[str]:
        """Yield each job that is not in exactly one table, with its request."""
        for job, places, requests in self.query(_WRONG_PLACES):
            yield f"job {job} is in {places} tables, its request in {requests}"

    def complete(self) -> Iterator[str]:
        """Let one leader and one worker finish all jobs; yield problems."""
        if not self._work_to_the_end():
            yield "jobs are left over"
            return
        self.control.execute(_REQUEST_TICKS)
        yield from self.in_one_place()
        for job, effects, finishes in self.query(_WRONG_EFFECTS):
            yield f"job {job} took effect {effects} times with {finishes} finishes"
        yield from history.read(self.control, self.notes).problems

    def _work_to_the_end(self) -> bool:
        if not self.query(_LEFT):
            return True
        with self._leading() as (enqueuer, redelivery):
            deadline = monotonic() + _PATIENCE_SECONDS
            while self.query(_LEFT) and monotonic() < deadline:
                self.control.execute(f"{_EXPIRE}; {_DUE}")
                self.gate.time += 1
                enqueuer.drain()
                redelivery.run_once()
                popped: Any = self.redis.lpop(LIST, 100) or []
                for delivery in popped:
                    work(self.control, "the last", delivery.decode(), self.notes)
                if not popped:
                    # A dead job holds the key of an ordered queue.
                    dead.revive(self.control, dead.Selection())
        return not self.query(_LEFT)

    def faults(self) -> dict[str, Fault]:
        """Leases expire, retries come due, Redis loses everything, and lists a delivery twice, as RQ's tools do."""
        return {
            "leases expire": Fault(3, lambda: self._do(_EXPIRE), lambda: bool(self.notes.claimed)),
            "retries come due": Fault(2, lambda: self._do(_DUE), lambda: self.notes.has_failed),
            "Redis loses everything": Fault(1, self._flush),
            "a delivery is listed twice": Fault(1, self._list_twice, self.has_deliveries),
        }

    def _do(self, statement: str) -> None:
        self.control.execute(statement)

    def _list_twice(self) -> None:
        listed: Any = self.redis.lrange(LIST, 0, 0)
        if listed:
            self.redis.rpush(LIST, *listed)
            self.gate.redis_requests += 1
            self.notes.may_list_twice = True

    def _flush(self) -> None:
        self.redis.flushall()
        self.gate.redis_requests += 1


@cache
def _passes(reads: bool) -> Callable[[bytes], bool]:
    search = re.compile(_PASSING + (_READS if reads else b""), re.DOTALL).search
    # Most schedules send the same requests.
    return lru_cache(1000)(lambda request: search(request) is not None)


def _with_clocks() -> list[Any]:
    """Modules of the leader that read the clock."""
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith(("drain.admission.", "drain.enqueuer.")) and hasattr(module, "monotonic")
    ]


class Module(NamedTuple):
    """A part of the protocol.

    Attributes:
        scene: Makes a scene; the random numbers decide its size.
        mutants: Names in `tests/mutants` that enough of its schedules should find.
    """

    scene: Callable[[Laboratory, Random], Scene]
    mutants: tuple[str, ...]


class _Cast:
    """Programs of a scene, as the random numbers decide; they begin with a job or two.

    Args:
        options: Of jobs, some of which are staged.
    """

    def __init__(
        self, laboratory: Laboratory, random: Random, *options: Mapping[str, Any], jobs: int = 2
    ) -> None:
        self.laboratory, self.random = laboratory, random
        self.programs: dict[str, Program] = {}
        self._options = options or ({},)
        self._begun = random.randint(0, jobs)
        laboratory.stage(random, self._jobs(self._begun))

    def _jobs(self, number: int) -> list[Mapping[str, Any]]:
        return [self.random.choice(self._options) for _ in range(number)]

    def add(self, kind: str, program: Callable[[Random], Program], most: int = 2, least: int = 1) -> _Cast:
        for number in range(1, self.random.randint(least, most) + 1):
            self.programs[f"{kind} {number}"] = program(Random(self.random.random()))
        return self

    def applications(self, most: int = 1, *, turns: bool = False) -> _Cast:
        jobs = self._jobs(self.random.randint(1, 2))
        waits = self._begun and self.random.random() < 0.5
        begin = self.laboratory.notes.has_claims if waits else lambda: True
        program = partial(application, turns=turns, begin=begin)
        return self.add("application", lambda random: program(random, *jobs), most, least=not self._begun)

    def leaders(self, chore: Callable[[postgres.Connection], object] | None = None) -> _Cast:
        rounds, batch = self.random.randint(2, 4), self.random.randint(1, 2)
        most = self.random.choice([1, 1, 2])
        return self.add(
            "leader", lambda random: leading(self.laboratory.may_lead, rounds, batch, chore), most
        )

    def workers(self, most: int = 2, *, many: bool = False, frees: bool = False) -> _Cast:
        notes = self.laboratory.notes
        # As two processes, or as two threads of one.
        notes.shares_names = self.random.random() < 0.5
        name = "worker" if notes.shares_names else ""

        def make(random: Random) -> Program:
            many_now = many and random.random() < 0.7
            return working(
                self.laboratory.has_deliveries, notes, random, name=name, many=many_now, frees=frees
            )

        return self.add("worker", make, most, least=min(most, self.random.choice([1, 2, 2])))

    def operators(self, *acts: str, least: int = 1) -> _Cast:
        notes = self.laboratory.notes
        acts = acts or ACTS
        return self.add("operator", lambda random: operating(random, notes, acts=acts), most=1, least=least)

    def scene(
        self,
        check: Callable[[], Iterable[str]] = lambda: (),
        at_end: Callable[[], Iterable[str]] = lambda: (),
    ) -> Scene:
        restarts = frozenset(name for name in self.programs if not name.startswith("application"))
        return Scene(
            self.programs,
            check,
            lambda: chain(at_end(), self.laboratory.complete()),
            self.laboratory.faults(),
            passes=_passes(self.random.random() < 0.7),
            kills=2,
            restarts=restarts,
        )


def _delivery(laboratory: Laboratory, random: Random) -> Scene:
    return _Cast(laboratory, random).applications().leaders().workers().scene()


def _groups(laboratory: Laboratory, random: Random) -> Scene:
    return _Cast(laboratory, random).applications().leaders().workers(many=True).scene()


def _cancelling(laboratory: Laboratory, random: Random) -> Scene:
    cast = _Cast(laboratory, random).applications().leaders().workers()
    return cast.operators().scene()


def _partitions(laboratory: Laboratory, random: Random) -> Scene:
    cast = _Cast(laboratory, random).applications(2, turns=True).leaders()
    return cast.add("truncater", truncating).scene()


def _rules(laboratory: Laboratory, random: Random) -> Scene:
    rules = random.choice(
        [
            Rules(QUEUE, running=1),
            Rules(QUEUE, ordered=True),
            Rules(QUEUE, running_per_key=1, running=2),
            Rules(QUEUE, running_per_key=1, fair=True),
        ]
    )
    queues.replace(laboratory.control, rules)
    cast = _Cast(laboratory, random, {"key": "a"}, {"key": "b"}, {"key": "a"}, jobs=3)
    cast.applications().leaders().workers(frees=True).operators("cancel", "revive", least=0)

    def check() -> Iterator[str]:
        for key, running in laboratory.query(_RUNNING):
            limit = rules.running if key is None else 1
            if limit and running > limit:
                yield f"{running} jobs of {key or 'the queue'} are running"
        if rules.ordered:
            for earlier, later in laboratory.query(_OVERTAKEN):
                yield f"job {later} has overtaken job {earlier}"

    return cast.scene(check)


def _unique(laboratory: Laboratory, random: Random) -> Scene:
    keep = random.choice(["first", "last"])
    cast = _Cast(laboratory, random, {"unique_key": "doc:1", "keep": keep}).applications()
    cast.leaders(lambda connection: ReturnedJobs(connection).run_once()).workers(random.randint(1, 2))

    def check() -> Iterator[str]:
        for (jobs,) in laboratory.query(_NOT_UNIQUE):
            yield f"jobs {jobs} of one unique key wait"

    return cast.scene(check)


def _idempotency(laboratory: Laboratory, random: Random) -> Scene:
    # Of several that wait for the same commit, the server decides which one goes on.
    cast = _Cast(laboratory, random, {"idempotency_key": "k"}, jobs=0).applications(2).leaders().workers()

    def staged_twice() -> Iterator[str]:
        for (jobs,) in laboratory.query(_STAGED):
            if jobs > 1:
                yield f"{jobs} jobs of one idempotency key"

    return cast.scene(at_end=staged_twice)


def _cron(laboratory: Laboratory, random: Random) -> Scene:
    laboratory.control.execute(_DUE_SCHEDULE)
    cast = _Cast(laboratory, random, jobs=0).add("ticker", lambda random: ticking()).leaders().workers()

    def staged_twice() -> Iterator[str]:
        for (jobs,) in laboratory.query(_STAGED):
            if jobs > 1:
                yield f"{jobs} jobs of one tick"

    return cast.scene(at_end=staged_twice)


MODULES: Mapping[str, Module] = {
    "delivery": Module(
        _delivery,
        (
            "lead whether or not the lock is free",
            "give the session lock back with the statement that took it",
            "take the session lock after BEGIN, on the snapshot of a standby",
            "delete staged rows by range",
            "push tracked jobs before their move is committed",
            "begin a term with delivery number 0",
            "redeliver a job whose lease still holds",
            "redeliver a job under its old number",
            "redeliver a retry before its time",
            "hand out the numbers of a redelivery a second time",
            "claim a job through any of its deliveries",
            "claim a job that waits for its retry",
            "claim a job whose lease still holds",
            "keep the fencing token of the claim before",
            "finish a job under an old token",
            "retry, defer, interrupt and bury a job under an old token",
            "commit the writes of a job whose finish is refused",
        ),
    ),
    "groups": Module(
        _groups,
        (
            "claim a batch of jobs through any of their deliveries",
            "claim a batch of jobs that wait for their retries",
            "keep the fencing tokens of the batch before",
            "finish, extend and release a batch under any token",
            "extend the lease of a job that was given back",
        ),
    ),
    "cancelling": Module(
        _cancelling,
        (
            "cancel jobs in flight before staged ones",
            "cancel a job without a new fencing token",
            "revive a dead job with its first fencing token",
            "move a job that a worker runs",
        ),
    ),
    "partitions": Module(
        _partitions,
        ("truncate by a snapshot from before the lock",),
    ),
    "rules": Module(
        _rules,
        (
            "admit one job more than the limit of a queue",
            "forget under a limit what an earlier leader has admitted",
            "let retries pass a limit",
            "overtake an ordered job that waits for its retry",
            "free the key of a cancelled job that still runs",
            "forget under a new leader which cancelled jobs still run",
        ),
    ),
    "unique": Module(
        _unique,
        (
            "let a unique job give way to a run that has outlived its lease",
            "supersede a unique job that a worker has just claimed",
        ),
    ),
    "idempotency": Module(_idempotency, ("let two transactions stage under one idempotency key",)),
    "cron": Module(
        _cron,
        (
            "move a schedule on in a transaction of its own",
            "stage a tick that another ticker has locked",
        ),
    ),
}

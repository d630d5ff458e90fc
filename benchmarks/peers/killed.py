"""A worker killed around the commit of its job: how often the job takes effect on each system.

The job makes one UPDATE in a transaction. Its first run ends by SIGKILL of its own process, either before that
transaction commits or right after, before the system can record that the job has finished. A program that exits is
restarted, as by a service manager; other jobs keep passing through the queue. A measurement ends when the system
considers the job done, or after a time limit.
"""

# One thing: what each system reports about a killed job, and what follows from it.
from __future__ import annotations

import math
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psycopg
import redis

from benchmarks import figures
from benchmarks.peers import environments, peers, work
from benchmarks.peers.bench import bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer, Program
    from benchmarks.peers.results import Results
    from benchmarks.peers.run import Plan
    from drain.embedded import Services

# Longer than PgQueuer's heartbeat timeout of 30 s. Dramatiq checks at random, from 60 s after the kill on; RQ checks
# every ten minutes, which is too long to wait for.
_PATIENCE_SECONDS = 75
_DRAMATIQ_PATIENCE_SECONDS = 300
_SHORT_PATIENCE_SECONDS = 20
_FIRST_SECONDS = 60
_SETTLE_SECONDS = 3
_LOOK_SECONDS = 0.25
# Other jobs, because some systems clean up only while they work.
_OTHERS, _OTHERS_EVERY_SECONDS = 300, 5
DONE, GONE, FAILED = "done", "acknowledged, gone", "`failed`"
_FINAL = (DONE, GONE, FAILED)


@dataclass(frozen=True)
class Killed:
    """Result of one system at one moment.

    Attributes:
        peer: Name of the system.
        moment: When its worker was killed: `before` or `after` the commit.
        effects: How often the job's UPDATE took effect.
        state: Final state of the job, as reported by the system.
        seconds: Time from the kill to the end of the measurement.
    """

    peer: str
    moment: str
    effects: int
    state: str
    seconds: float


@dataclass(frozen=True)
class System:
    """One system whose workers are killed.

    Attributes:
        peer: The peer, run with one process.
        settings: The settings that matter here, as shipped.
        state: Asks the system for the state of the job.
        suffix: Suffix of its job names.
        patience_seconds: How long the job is watched after the kill.
        again: How long until it reruns a claimed job, if that is longer.
    """

    peer: Peer
    settings: str
    state: Callable[[Bench], str]
    suffix: str = ""
    patience_seconds: float = _PATIENCE_SECONDS
    again: str = ""

    @property
    def name(self) -> str:
        return f"{self.peer.name}{', grouped' if self.suffix else ''}"


def measure(services: Services, results: Results, plan: Plan) -> None:
    """Kill a worker of each system at both moments."""
    environments.make({system.peer.environment for system in SYSTEMS})
    bound = math.inf if plan.hold_seconds >= _PATIENCE_SECONDS else _SHORT_PATIENCE_SECONDS
    results.killed = []
    with bench(services) as place:
        for system in SYSTEMS:
            for moment in (work.BEFORE, work.AFTER):
                one = _kill(place, system, moment, min(bound, system.patience_seconds))
                results.killed.append(one)
                figures.say(
                    f"  {one.peer}, {moment} its commit: {one.effects} effects, {one.state}, {one.seconds:.0f} s"
                )


def table(results: Results) -> str:
    """Render the section of RESULTS.md."""
    found = {(each.peer, each.moment): each for each in results.killed}
    rows = []
    for system in SYSTEMS:
        # A new system has no figures until this part is measured again.
        if (system.name, work.BEFORE) not in found:
            continue
        moments = [found[system.name, moment] for moment in (work.BEFORE, work.AFTER)]
        rows.append(
            (system.name, *(_in_words(each) for each in moments), _verdict(system, *moments), system.settings)
        )
    header = (
        "",
        "killed before its commit",
        "killed between commit and finish",
        "so",
        "settings, as shipped",
    )
    return (
        f"## Killed between commit and finish\n\n{figures.table(header, rows)}\n\n"
        "How often the job's UPDATE took effect, the final state of the job as the system reports it, and the time "
        "since the kill. The job kills its own worker process by SIGKILL in its first run; programs that exit are "
        "restarted. The end is when the system considers the job done, failed or acknowledged, or "
        f"{_PATIENCE_SECONDS} s after the kill (Dramatiq: {_DRAMATIQ_PATIENCE_SECONDS} s). "
        "This test does not wait for claims of minutes or hours; the next table lets them expire."
    )


def _in_words(one: Killed) -> str:
    times = {0: "never", 1: "once", 2: "**twice**"}.get(one.effects, f"**{one.effects} times**")
    return f"{times}; {one.state}, {one.seconds:.0f} s"


def _verdict(system: System, *moments: Killed) -> str:
    effects = [each.effects for each in moments]
    if system.again:
        once = "exactly once" if moments[-1].state == DONE and max(effects) == 1 else "at least once"
        return f"{once}, after {system.again}"
    if effects == [1, 1] and all(each.state == DONE for each in moments):
        return "exactly once"
    if max(effects) > 1:
        return "at least once" if min(effects) else "neither"
    promise = "at most once" if min(effects) == 0 else "once"
    return promise if any(each.state == GONE for each in moments) else f"{promise}; a person has to look"


def _kill(place: Bench, system: System, moment: str, patience: float) -> Killed:
    peer = system.peer
    place.reset(peer)
    place.forget()
    died = place.directory / f"{work.DIED}{moment}"
    died.unlink(missing_ok=True)
    place.fill(peer, f"killed_{moment}{system.suffix}", 1)
    with kept_running(place, peer.programs(place.services.redis_url, 1)) as restart:
        if not any(died.exists() for _ in looks(_FIRST_SECONDS, restart)):
            raise RuntimeError(f"{system.name}: no job has killed its worker")
        killed_at = monotonic()
        state = _final_state(place, system, patience, restart)
    return Killed(system.name, moment, _effects(place), state, monotonic() - killed_at)


def _final_state(place: Bench, system: System, patience: float, restart: Callable[[], None]) -> str:
    """Wait until the system considers the job done or gone, while other jobs pass through."""
    killed_at = others_at = monotonic()
    for _ in looks(patience, restart):
        state = system.state(place)
        if state in _FINAL and monotonic() > killed_at + _SETTLE_SECONDS:
            break
        if monotonic() > others_at + _OTHERS_EVERY_SECONDS:
            place.fill(system.peer, "noop", _OTHERS)
            others_at = monotonic()
    return state


@contextmanager
def kept_running(place: Bench, programs: Sequence[Program]) -> Iterator[Callable[[], None]]:
    """Run programs while the block runs; yields a function that restarts those that have exited."""
    with ExitStack() as stack:

        def start(program: Program) -> int:
            return stack.enter_context(place.running([program])).pids[0]

        pids = [start(program) for program in programs]

        def restart() -> None:
            for number, program in enumerate(programs):
                if _exited(pids[number]):
                    pids[number] = start(program)

        yield restart


def looks(seconds: float, restart: Callable[[], None]) -> Iterator[None]:
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        sleep(_LOOK_SECONDS)
        restart()
        yield


def _effects(place: Bench) -> int:
    with psycopg.connect(place.database_url) as connection:
        ((balance,),) = connection.execute("SELECT balance FROM accounts WHERE id = 0").fetchall()
    return int(balance)


def _exited(pid: int) -> bool:
    """Check whether a program has exited; its parent, this process, has not waited for it yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _by_sql(statement: str) -> Callable[[Bench], str]:
    """Ask PostgreSQL for the state; without a row, the job is done and deleted."""

    def state(place: Bench) -> str:
        with psycopg.connect(place.database_url) as connection:
            row = connection.execute(statement.encode()).fetchone()
        return str(row[0]) if row else DONE

    return state


def _by_redis(ask: Callable[[Any], str]) -> Callable[[Bench], str]:
    def state(place: Bench) -> str:
        with redis.Redis.from_url(place.services.redis_url, decode_responses=True) as client:
            return ask(client)

    return state


def _rq_state(client: Any) -> str:
    for key in client.scan_iter("rq:job:*"):
        if "killed" in (client.hget(key, "description") or ""):
            status = client.hget(key, "status")
            return DONE if status == "finished" else FAILED if status == "failed" else f"`{status}`"
    return DONE


def _celery_state(client: Any) -> str:
    held = [*client.hvals("unacked"), *client.lrange("celery", 0, -1)]
    return "`unacked`" if any("killed" in each for each in held) else GONE


def _dramatiq_state(client: Any) -> str:
    held = [each for key in client.scan_iter("dramatiq:*.msgs") for each in client.hvals(key)]
    return "still queued or unacknowledged" if any("killed" in each for each in held) else DONE


_DRAIN_STATE = _by_sql(
    "SELECT 'in flight' FROM inflight_jobs WHERE job_name LIKE 'killed%' "
    "UNION ALL SELECT 'staged' FROM staged_jobs WHERE job_name LIKE 'killed%' "
    "UNION ALL SELECT 'dead' FROM dead_jobs WHERE job_name LIKE 'killed%'"
)
_GRAPHILE_STATE = _by_sql(
    "SELECT CASE WHEN locked_at IS NULL THEN 'queued' ELSE '`locked`' END "
    "FROM graphile_worker._private_jobs AS job JOIN graphile_worker._private_tasks AS task ON task.id = job.task_id "
    "WHERE identifier LIKE 'killed%'"
)
_PGBOSS_STATE = _by_sql(
    "SELECT '`' || state || '`' FROM pgboss.job WHERE name LIKE 'killed%' AND state <> 'completed'"
)
_OURS_SETTINGS = "UPDATE and finish are one commit; lease of 30 s, the worker's successor reads its journal"
SYSTEMS = (
    System(peers.OURS, f"{_OURS_SETTINGS}; `flushed`", _DRAIN_STATE),
    System(peers.OURS, f"{_OURS_SETTINGS}; `grouped`", _DRAIN_STATE, "_grouped"),
    System(
        peers.PGQUEUER,
        "heartbeat timeout of `pgq run`",
        _by_sql("SELECT '`' || status || '`' FROM pgqueuer WHERE entrypoint LIKE 'killed%'"),
    ),
    System(
        peers.PROCRASTINATE,
        "stalled jobs are retried only by a user-defined task, which would make it at least once",
        _by_sql(
            "SELECT '`' || status || '`' FROM procrastinate_jobs "
            "WHERE task_name LIKE 'killed%' AND status <> 'succeeded'"
        ),
    ),
    System(
        peers.DRAMATIQ,
        "acknowledged after the job; heartbeat timeout of 60 s, checked in one of 1,000 commands",
        _by_redis(_dramatiq_state),
        patience_seconds=_DRAMATIQ_PATIENCE_SECONDS,
    ),
    System(peers.CELERY, "acknowledged before the job (`acks_late` is off)", _by_redis(_celery_state)),
    *(
        System(peer, "locked for 4 hours", _GRAPHILE_STATE, again="4 hours")
        for peer in (peers.GRAPHILE, peers.GRAPHILE_BATCHED)
    ),
    *(
        System(peer, settings, _PGBOSS_STATE, again="15 minutes")
        for peer, settings in (
            (peers.PGBOSS, "`expireInSeconds` of 15 minutes, no heartbeat"),
            (peers.PGBOSS_TRANSACTIONAL, "the same; UPDATE and completion are one commit"),
        )
    ),
    System(peers.RQ_WORKER, "no retry; registries tidied every ten minutes", _by_redis(_rq_state)),
    System(peers.RQ_SIMPLE, "no retry; registries tidied every ten minutes", _by_redis(_rq_state)),
)

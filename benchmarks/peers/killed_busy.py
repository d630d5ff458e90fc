"""A worker process is killed while it holds many jobs: how many are stuck, and how many run twice.

Each job updates its own account, so that the account's balance counts how often the job took effect. The worker and all
its descendants get SIGKILL in the middle of a batch; a successor starts at once, as under a service manager. Later,
remaining claims are backdated by as long as they are valid, instead of waiting for hours, and the worker is started
once more.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg

from benchmarks import figures
from benchmarks.peers import environments, peers, processes, work
from benchmarks.peers.bench import bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer
    from benchmarks.peers.results import Results
    from benchmarks.peers.run import Plan
    from drain.embedded import Services

JOBS = work.ACCOUNTS
# In the middle of batches of 500 and of 1,000.
_JOBS_BEFORE = 2250
_RUN_SECONDS = 300
_SETTLE_SECONDS = 30
_LOOK_SECONDS = 0.5
_QUIET_SECONDS = 10
_LIMIT_SECONDS = 600
# Longer than any lease or heartbeat timeout below a minute.
_PATIENCE_SECONDS = 90
# The supervisor of pg-boss takes up to two minutes to check a queue, and its workers poll every 30 s.
_RUN_OUT_SECONDS = 200
_SHORT_PATIENCE_SECONDS = 45
_COUNT_HELD = (
    "SELECT count(*), count(*) FILTER (WHERE balance > 0) FROM ({held}) AS held (id) JOIN accounts USING (id)"
)
_COUNT_EFFECTS = (
    "SELECT count(*) FILTER (WHERE balance > 1), count(*) FILTER (WHERE balance = 0) FROM accounts"
)
_COUNT_BUSY = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"
)


@dataclass(frozen=True)
class KilledBusy:
    """Result of one system.

    Attributes:
        peer: Name of the system.
        held: Jobs that the worker held when it was killed: claimed, and not recorded as finished.
        done: Held jobs that had taken effect.
        stuck: Jobs still claimed by the killed process when the patience ended.
        twice: Jobs that took effect more than once, counted after all claims expired.
        never: Jobs that never took effect, counted at the same time.
    """

    peer: str
    held: int
    done: int
    stuck: int
    twice: int
    never: int


@dataclass(frozen=True)
class System:
    """One system whose busy worker is killed.

    Attributes:
        peer: The peer, run with one process.
        claim: How long a claim is valid, in words.
        held: SQL that selects the accounts of the jobs that a worker holds.
        left: SQL that selects something while the queue is not empty.
        run_out: SQL that backdates claims by as long as they are valid; None if they expire within the patience.
    """

    peer: Peer
    claim: str
    held: str
    left: str
    run_out: str | None = None


def measure(services: Services, results: Results, plan: Plan) -> None:
    """Kill a busy worker of each system."""
    environments.make({system.peer.environment for system in SYSTEMS})
    patience = _PATIENCE_SECONDS if plan.hold_seconds >= _PATIENCE_SECONDS else _SHORT_PATIENCE_SECONDS
    results.killed_busy = []
    with bench(services) as place:
        for system in SYSTEMS:
            one = _kill(place, system, patience)
            results.killed_busy.append(one)
            figures.say(
                f"  {one.peer}: {one.held} held, {one.done} of them done, {one.stuck} stuck; "
                f"{one.twice} twice, {one.never} never"
            )


def table(results: Results) -> str:
    """Render the section of RESULTS.md."""
    claims = {system.peer.name: system.claim for system in SYSTEMS}
    rows = [
        (
            one.peer,
            f"{one.held:,}",
            f"{one.done:,}",
            f"{one.stuck:,}",
            f"{one.twice:,}",
            f"{one.never:,}",
            claims.get(one.peer, ""),
        )
        for one in results.killed_busy
    ]
    header = (
        "",
        "in hand when killed",
        "of them done, not noted",
        f"stuck after {_PATIENCE_SECONDS} s",
        "ran twice in the end",
        "never ran",
        "a claim is valid for",
    )
    return (
        f"## A busy worker is killed\n\n{figures.table(header, rows)}\n\n"
        f"{JOBS:,} jobs of one UPDATE. The only worker process gets SIGKILL with all its children after "
        f"{_JOBS_BEFORE:,} have run; a successor starts at once. Stuck: claimed by the killed process, and not run "
        "again. In the end: after the claims have expired, backdated if they last minutes or hours."
    )


def _kill(place: Bench, system: System, patience: float) -> KilledBusy:
    peer = system.peer
    place.reset(peer)
    place.forget()
    place.fill(peer, peer.update, JOBS)
    programs = peer.programs(place.services.redis_url, 1)
    others, workers = ([each for each in programs if each.is_worker is kind] for kind in (False, True))
    with place.running(others):
        with place.running(workers) as running:
            if not place.wait_for_jobs(_JOBS_BEFORE, _RUN_SECONDS):
                raise RuntimeError(f"{peer.name}: {_JOBS_BEFORE} jobs take longer than {_RUN_SECONDS} s")
            for pid in processes.family(running.workers):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _wait_for_statements(place)
        held, done = _ask(place, _COUNT_HELD.format(held=system.held))
        with place.running(workers):
            _wait_until_quiet(place, system, patience)
            (stuck,) = _ask(place, f"SELECT count(*) FROM ({system.held}) AS held")
        if stuck and system.run_out:
            _ask(place, system.run_out)
            with place.running(workers):
                _wait_until_quiet(place, system, _RUN_OUT_SECONDS)
    twice, never = _ask(place, _COUNT_EFFECTS)
    return KilledBusy(peer.name, held, done, stuck, twice, never)


def _wait_for_statements(place: Bench) -> None:
    """Wait until the statements sent by the killed process have ended."""
    deadline = monotonic() + _SETTLE_SECONDS
    while monotonic() < deadline and _ask(place, _COUNT_BUSY) != (0,):
        sleep(_LOOK_SECONDS)


def _wait_until_quiet(place: Bench, system: System, patience: float) -> None:
    """Wait until the queue is empty, or the patience has passed and its length no longer changes."""
    began = changed = monotonic()
    last: tuple[int, ...] = (-1,)
    while last != (0,) and monotonic() < began + _LIMIT_SECONDS:
        if monotonic() > max(began + patience, changed + _QUIET_SECONDS):
            return
        sleep(_LOOK_SECONDS)
        left = _ask(place, f"SELECT count(*) FROM ({system.left}) AS jobs")
        if left != last:
            last, changed = left, monotonic()


def _ask(place: Bench, statement: str) -> tuple[int, ...]:
    with psycopg.connect(place.database_url, autocommit=True) as connection:
        found = connection.execute(statement.encode())
        return tuple(found.fetchone() or ()) if found.description else ()


def _of_ours() -> Iterator[System]:
    for peer in (peers.OURS, peers.OURS_FLUSHED):
        yield System(
            peer,
            "30 s; a worker's successor frees its claims at once",
            "SELECT (job_args ->> 0)::integer FROM inflight_jobs WHERE claimed_by IS NOT NULL",
            "SELECT FROM inflight_jobs UNION ALL SELECT FROM staged_jobs",
        )


_GRAPHILE_HELD = (
    "SELECT (payload ->> 'number')::integer FROM graphile_worker._private_jobs WHERE locked_at IS NOT NULL"
)
_GRAPHILE_LEFT = "SELECT FROM graphile_worker._private_jobs"
_GRAPHILE_RUN_OUT = "UPDATE graphile_worker._private_jobs SET locked_at = locked_at - interval '4 hours'"
_PGBOSS_HELD = (
    "SELECT (data ->> 'number')::integer FROM pgboss.job WHERE name = 'update' AND state = 'active'"
)
_PGBOSS_LEFT = "SELECT FROM pgboss.job WHERE name = 'update' AND state < 'completed'"
_PGBOSS_RUN_OUT = (
    "UPDATE pgboss.job SET started_on = started_on - interval '15 minutes' WHERE state = 'active'"
)
SYSTEMS = (
    *_of_ours(),
    System(
        peers.PGQUEUER,
        "30 s without heartbeats",
        "SELECT convert_from(payload, 'UTF8')::integer FROM pgqueuer WHERE status = 'picked'",
        "SELECT FROM pgqueuer",
    ),
    System(peers.GRAPHILE_BATCHED, "4 hours", _GRAPHILE_HELD, _GRAPHILE_LEFT, _GRAPHILE_RUN_OUT),
    System(peers.GRAPHILE, "4 hours", _GRAPHILE_HELD, _GRAPHILE_LEFT, _GRAPHILE_RUN_OUT),
    System(peers.PGBOSS_BATCHED, "15 minutes", _PGBOSS_HELD, _PGBOSS_LEFT, _PGBOSS_RUN_OUT),
)

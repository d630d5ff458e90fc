"""`python -m benchmarks.dependencies`: jobs that wait for others, and what they cost those that don't."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
from contextlib import contextmanager
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import alone, figures, latency, rates
from benchmarks.dependent_jobs import QUEUE, node
from benchmarks.peers.results import spread
from benchmarks.processes import command
from drain.database import postgres
from drain.enqueuer.unblocker import _IDLE_SECONDS
from drain.tables import edges
from drain.tables.columns import FINISHED, FINISHED_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drain.embedded import Services

    Connection = psycopg.Connection[Any]

# Sizes of the whole measurement, and of the short form.
SIZES = {
    "children": (1_000_000, 10_000),
    "fan": (100_000, 2000),
    "chain": (1000, 100),
    "flows": (1000, 20),
    "plain": (50_000, 2000),
    "seconds": (20.0, 3.0),
    "rounds": (3, 1),
}
# Pairs of a parent and its child.
_PER_SECOND = (500, 250)
_LEVELS = _WIDTH = 10
_TOGETHER = 100
_LOOKS = 1000
_WITHOUT = "from drain.enqueuer.unblocker import Unblocker; Unblocker.run_once = lambda self: False"
_PARENTS = (
    "INSERT INTO staged_jobs (job_name) SELECT 'benchmark.parent' FROM generate_series(1, %s) RETURNING id"
)
_CHILDREN = """
WITH children AS (INSERT INTO staged_jobs (job_name, job_args, scheduled_at)
    SELECT 'benchmark.child', jsonb_build_array(n), '9999-12-29Z' FROM generate_series(1, %s) AS n
    RETURNING id)
SELECT drain_after(array_agg(id), array_agg(parent), array_agg('cancel'::text))
FROM children, unnest(%s::bigint[]) AS parent
"""
# Each job waits for all of the level before it.
_FLOWS = f"""
WITH jobs AS (INSERT INTO staged_jobs (job_name, queue, scheduled_at)
    SELECT '{node.job_name}', '{QUEUE}', CASE n / %(width)s %% %(levels)s WHEN 0 THEN now() ELSE '9999-12-29Z' END
    FROM generate_series(0, %(jobs)s - 1) AS n RETURNING id
), numbered AS (SELECT id, (row_number() OVER (ORDER BY id) - 1) / %(width)s AS level FROM jobs)
SELECT drain_after(array_agg(child.id), array_agg(parent.id), array_agg('cancel'::text))
FROM numbered AS child JOIN numbered AS parent ON parent.level = child.level - 1
WHERE child.level %% %(levels)s > 0
"""
_FINISH = f"""
WITH done AS (DELETE FROM inflight_jobs WHERE id = ANY (%s) RETURNING *)
INSERT INTO finished_jobs ({FINISHED})
SELECT {FINISHED_VALUES.replace(" claimed_at", " coalesce(claimed_at, now())")} FROM done
"""
_ARE_LEFT = "SELECT EXISTS (SELECT FROM staged_jobs) OR EXISTS (SELECT FROM inflight_jobs)"
_NOW = "SELECT clock_timestamp(), pg_current_wal_lsn()"
_SINCE = """
SELECT extract(epoch FROM max(finished_at) - %s)::float8, pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::float8
FROM finished_jobs
"""
_EDGES = """
SELECT extract(epoch FROM child.moved_at - parent.finished_at)::float8,
    extract(epoch FROM child.claimed_at - parent.finished_at)::float8
FROM job_edges JOIN finished_jobs AS child ON child.id = child_id JOIN finished_jobs AS parent ON parent.id = parent_id
"""
_PLAIN = ("jobs a second", "bytes of WAL a job", "staged to started, p50 ms")
_STARTS = "SELECT extract(epoch FROM claimed_at - staged_at)::float8 FROM finished_jobs WHERE staged_at > %s"


def section(started: Services, **sizes: Any) -> str:
    """Measure and return the figures as Markdown."""
    figures.say("dependencies")
    rounds = range(sizes["rounds"])
    return "\n\n".join(
        (
            _bulk(started, sizes["children"], sizes["fan"], rounds),
            _small(started, sizes["chain"], sizes["seconds"], rounds),
            _flows(started, sizes["flows"]),
            _nothing(started, sizes["plain"], sizes["seconds"] / 5, rounds),
        )
    )


def _bulk(started: Services, children: int, fan: int, rounds: range) -> str:
    staged = _staged(started, children)
    together = [_unblocked(started, fan, 1, fan) for _ in rounds]
    in_turn = [_unblocked(started, fan, 1, _TOGETHER) for _ in rounds]
    fan_out = [_unblocked(started, 1, fan, 1) for _ in rounds]
    table = figures.table(
        ("", "seconds", "to reach"),
        (
            (
                f"{children:,} children of one job staged, {children / staged:,.0f} a second",
                f"{staged:.1f}",
                "30",
            ),
            (f"one job waits for {fan:,}, which finish in one transaction", spread(together, ".2f"), "1"),
            (f"the same, {_TOGETHER} in a transaction", spread(in_turn, ".2f"), "1"),
            (f"{fan:,} jobs wait for one", spread(fan_out, ".2f"), ""),
        ),
    )
    return (
        "## Many edges\n\n"
        f"{table}\n\nStaged by one `INSERT … SELECT` and `drain_after`, in one transaction. Otherwise from the commit "
        "of the last finish until no edge waits; meanwhile the leader also moves the jobs that come free."
    )


def _small(started: Services, chain: int, seconds: float, rounds: range) -> str:
    with _running(started) as connection:
        took = [_done(connection, chain, chain, 1)[0] for _ in rounds]
    figures.say(f"  a chain of {chain}: {spread(took, '.2f')} s")
    rows = []
    for each in _PER_SECOND:
        moves, starts = _edges(started, each, seconds)
        percentiles = [figures.milliseconds(starts, percent) for percent in (50, 99)]
        rows.append(
            (f"{each}", f"{len(starts):,}", figures.milliseconds(moves, 50), *percentiles, "p50 5, p99 25")
        )
        figures.say(f"  edges at {each}: {rows[-1]}")
    table = figures.table(("pairs a second", "pairs", "moved, p50", "p50 ms", "p99 ms", "to reach"), rows)
    return (
        "## From a finish to the next start\n\n"
        f"{table}\n\nAn application commits pairs of a job and one that waits for it, on {latency.THREADS} "
        "connections. From the finish of the first to the move and the claim of the second, by the clock of "
        f"PostgreSQL. A chain of {chain:,} jobs took {spread(took, '.2f')} s, "
        f"{1000 * statistics.median(took) / chain:.1f} ms a link."
    )


def _flows(started: Services, flows: int) -> str:
    jobs = flows * _LEVELS * _WIDTH
    with _running(started) as connection:
        plain = jobs / _done(connection, jobs, 1, 1)[0]
        nodes = jobs / _done(connection, jobs, _LEVELS, _WIDTH)[0]
    figures.say(f"  {nodes:,.0f} nodes and {plain:,.0f} plain jobs a second")
    rows = [
        ("plain jobs", f"{plain:,.0f}"),
        ("nodes", f"{nodes:,.0f}"),
        ("ratio, to reach: 0.3", f"{nodes / plain:.2f}"),
    ]
    return (
        f"## {flows:,} flows at once\n\n{figures.table(('', 'jobs a second'), rows)}\n\n"
        f"Each flow has {_LEVELS} levels of {_WIDTH} jobs that do nothing; each job waits for all of the level before "
        f"it. {jobs:,} jobs, from the commit of all flows to the last finish; two worker processes."
    )


def _nothing(started: Services, jobs: int, seconds: float, rounds: range) -> str:
    """Compare the leader with one that never looks for edges."""
    kinds = ("", _WITHOUT)
    found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
    for number in rounds:
        for kind in kinds[:: -1 if number % 2 else 1]:
            found[kind].append(_plain(started, jobs, seconds, kind))
            figures.say(f"  plain jobs{', no looks' if kind else ''}: {found[kind][-1]}")
    rows = []
    columns = [list(zip(*found[kind], strict=True)) for kind in kinds]
    for what, form, ours, without in zip(_PLAIN, (",.0f", ",.0f", ".2f"), *columns, strict=True):
        rows.append((what, spread(ours, form), spread(without, form), figures.ratio(ours, without, 2)))
    table = figures.table(("", "leader as it is", "leader that never looks", "ratio"), rows)
    idle, waiting = _looks(started)
    return (
        f"## Without jobs that wait\n\n{table}\n\nBursts of {jobs:,} plain jobs, and {latency.PER_SECOND} transactions "
        f"a second for {seconds:g} s. A look takes {idle * 1e6:.0f} us while no edge waits and {waiting * 1e6:.0f} us "
        f"while {_LOOKS:,} wait: at {1 / _IDLE_SECONDS:.0f} looks a second the former is "
        f"{idle / _IDLE_SECONDS:.2%} of the leader's time."
    )


def _staged(services: Services, children: int) -> float:
    rates.refill(services, 0)
    with psycopg.connect(services.database_url) as connection:
        parents = connection.execute(_PARENTS, (1,)).fetchall()[0]
        connection.commit()
        began = perf_counter()
        connection.execute(_CHILDREN, (children, list(parents)))
        connection.commit()
        return perf_counter() - began


def _unblocked(services: Services, parents: int, children: int, together: int) -> float:
    """Finish parents in flight, so many in a transaction; returns the seconds until no edge waits."""
    rates.refill(services, 0)
    url = services.database_url
    redis = rates.DiscardingProducer(services.redis_url, rates.NAMESPACE)
    ended: list[float] = []
    with rates.leading(services, redis) as enqueuer, psycopg.connect(url, autocommit=True) as other:
        with other.transaction():
            ids = [id_ for (id_,) in other.execute(_PARENTS, (parents,))]
            other.execute(_CHILDREN, (children, ids))
        enqueuer.drain()

        def finish() -> None:
            for first in range(0, parents, together):
                other.execute(_FINISH, (ids[first : first + together],))
            ended.append(perf_counter())

        thread = threading.Thread(target=finish)
        thread.start()
        while not ended or edges.look(other, None).waits:
            enqueuer.run_once()
        thread.join()
        took = perf_counter() - ended[0]
    figures.say(f"  {parents:,} parents, {children:,} children: {took:.2f} s")
    return took


def _edges(services: Services, per_second: int, seconds: float) -> tuple[list[float], list[float]]:
    def stage_pair(connection: Connection, _number: int) -> None:
        parent = node.stage(connection)
        node.options(after=[parent]).stage(connection)
        connection.commit()

    with _running(services) as connection:
        _apply(services, per_second, seconds, stage_pair)
        _wait(connection)
        moves, starts = zip(*connection.execute(_EDGES).fetchall(), strict=True)
    return list(moves), list(starts)


def _plain(services: Services, jobs: int, seconds: float, patch: str) -> tuple[float, float, float]:
    """Measure jobs a second, bytes of WAL a job, and the median in milliseconds from staging to start."""

    def stage(connection: Connection, _number: int) -> None:
        node.stage(connection)
        connection.commit()

    with _running(services, patch) as connection:
        took, written = _done(connection, jobs, 1, 1)
        now, _ = connection.execute(_NOW).fetchall()[0]
        _apply(services, latency.PER_SECOND, seconds, stage)
        _wait(connection)
        starts = [start for (start,) in connection.execute(_STARTS, (now,))]
    return jobs / took, written / jobs, 1000 * statistics.median(starts)


def _apply(
    services: Services, per_second: int, seconds: float, act: Callable[[Connection, int], None]
) -> None:
    process = multiprocessing.Process(
        target=latency.at_a_rate, args=(services.database_url, per_second, seconds, act)
    )
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError("the application failed")


def _looks(services: Services) -> list[float]:
    """Measure the seconds of a look, while no edge waits, and while some do."""
    found = []
    rates.refill(services, 0)
    with postgres.connect(services.database_url, "benchmark") as connection:
        for waiting in (0, _LOOKS):
            if waiting:
                parents = connection.execute(_PARENTS, (1,)).fetchall()[0]
                with connection.transaction():
                    connection.execute(_CHILDREN, (waiting, list(parents)))
            last = edges.look(connection, None).snapshot
            taken = []
            for _ in range(_LOOKS):
                began = perf_counter()
                last = edges.look(connection, last).snapshot
                taken.append(perf_counter() - began)
            found.append(statistics.median(taken))
    return found


@contextmanager
def _running(services: Services, patch: str = "") -> Iterator[Connection]:
    """Run `drain run` and `drain work` on an empty database."""
    rates.refill(services, 0)
    with (
        command(services, "run", "--metrics-port", "0", patch=patch),
        command(services, "work", QUEUE, "--processes", "2", jobs="benchmarks.dependent_jobs"),
        psycopg.connect(services.database_url, autocommit=True) as connection,
    ):
        # Both are ready once a job has finished.
        _done(connection, 1, 1, 1)
        yield connection


def _done(connection: Connection, jobs: int, levels: int, width: int) -> tuple[float, float]:
    """Stage jobs, and wait for them; returns the seconds from commit to the last finish, and bytes of WAL."""
    _, position = connection.execute(_NOW).fetchall()[0]
    connection.execute(_FLOWS, {"jobs": jobs, "levels": levels, "width": width})
    committed, _ = connection.execute(_NOW).fetchall()[0]
    _wait(connection)
    seconds, written = connection.execute(_SINCE, (committed, position)).fetchall()[0]
    return seconds, written


def _wait(connection: Connection) -> None:
    deadline = monotonic() + 300
    while connection.execute(_ARE_LEFT).fetchall() == [(True,)]:
        if monotonic() > deadline:
            raise TimeoutError("the jobs did not finish")
        sleep(0.1)


if __name__ == "__main__":
    alone.run("dependencies", section, SIZES)

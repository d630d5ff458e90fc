"""Stage and run jobs that wait for others, for `benchmarks.dependencies`."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
from contextlib import contextmanager
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import figures, latency, rates
from benchmarks.dependent_jobs import QUEUE, node
from benchmarks.processes import command
from drain.database import postgres
from drain.enqueuer.enqueuer import SESSION
from drain.tables import edge_looks
from drain.tables.columns import FINISHED, FINISHED_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drain.embedded import Services

    Connection = psycopg.Connection[Any]

LOOKS = 1000
WITHOUT_LOOKS = "from drain.enqueuer.unblocker import Unblocker; Unblocker.run_once = lambda self: False"
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
# Each job waits for the whole previous level.
_FLOWS = f"""
WITH jobs AS (INSERT INTO staged_jobs (job_name, queue, scheduled_at)
    SELECT '{node.job_name}', '{QUEUE}', CASE n / %(width)s %% %(levels)s WHEN 0 THEN now() ELSE '9999-12-29Z' END
    FROM generate_series(0, %(jobs)s - 1) AS n RETURNING id
), numbered AS (SELECT id, (row_number() OVER (ORDER BY id) - 1) / %(width)s AS level FROM jobs)
SELECT drain_after(array_agg(child.id), array_agg(parent.id), array_agg('cancel'::text))
FROM numbered AS child JOIN numbered AS parent ON parent.level = child.level - 1
WHERE child.level %% %(levels)s > 0
"""
FINISH = f"""
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
_STARTS = "SELECT extract(epoch FROM claimed_at - staged_at)::float8 FROM finished_jobs WHERE staged_at > %s"


def staged(services: Services, children: int) -> float:
    rates.refill(services, 0)
    with psycopg.connect(services.database_url) as connection:
        parents = connection.execute(_PARENTS, (1,)).fetchall()[0]
        connection.commit()
        began = perf_counter()
        connection.execute(_CHILDREN, (children, list(parents)))
        connection.commit()
        return perf_counter() - began


def unblocked(services: Services, parents: int, children: int, together: int) -> float:
    """Finish parents in flight, `together` per transaction; returns the seconds until no edge waits."""
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
                other.execute(FINISH, (ids[first : first + together],))
            ended.append(perf_counter())

        thread = threading.Thread(target=finish)
        thread.start()
        while not ended or edge_looks.look(other, None).waits:
            enqueuer.run_once()
        thread.join()
        took = perf_counter() - ended[0]
    figures.say(f"  {parents:,} parents, {children:,} children: {took:.2f} s")
    return took


def edge_seconds(services: Services, per_second: int, seconds: float) -> tuple[list[float], list[float]]:
    def stage_pair(connection: Connection, _number: int) -> None:
        parent = node.stage(connection)
        node.options(after=[parent]).stage(connection)
        connection.commit()

    with running(services) as connection:
        _apply(services, per_second, seconds, stage_pair)
        wait(connection)
        moves, starts = zip(*connection.execute(_EDGES).fetchall(), strict=True)
    return list(moves), list(starts)


def plain(services: Services, jobs: int, seconds: float, patch: str) -> tuple[float, float, float]:
    """Measure jobs a second, bytes of WAL per job, and median milliseconds from staging to start."""

    def stage(connection: Connection, _number: int) -> None:
        node.stage(connection)
        connection.commit()

    with running(services, patch) as connection:
        took, written = done(connection, jobs, 1, 1)
        now, _ = connection.execute(_NOW).fetchall()[0]
        _apply(services, latency.PER_SECOND, seconds, stage)
        wait(connection)
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


def look_seconds(services: Services) -> list[float]:
    """Measure the seconds of a look, without and with waiting edges."""
    found = []
    rates.refill(services, 0)
    with postgres.connect(services.database_url, "benchmark") as connection:
        connection.execute("; ".join(SESSION))
        for waiting in (0, LOOKS):
            if waiting:
                parents = connection.execute(_PARENTS, (1,)).fetchall()[0]
                with connection.transaction():
                    connection.execute(_CHILDREN, (waiting, list(parents)))
            last = edge_looks.look(connection, None)
            taken = []
            for _ in range(LOOKS):
                began = perf_counter()
                last = edge_looks.look(connection, last)
                taken.append(perf_counter() - began)
            found.append(statistics.median(taken))
    return found


@contextmanager
def running(services: Services, patch: str = "") -> Iterator[Connection]:
    """Run `drain run` and `drain work` on an empty database."""
    rates.refill(services, 0)
    with (
        command(services, "run", "--metrics-port", "0", patch=patch),
        command(services, "work", QUEUE, "--processes", "2", jobs="benchmarks.dependent_jobs"),
        psycopg.connect(services.database_url, autocommit=True) as connection,
    ):
        # Both are ready once a job has finished.
        done(connection, 1, 1, 1)
        yield connection


def done(connection: Connection, jobs: int, levels: int, width: int) -> tuple[float, float]:
    """Stage jobs and wait for them; returns the seconds from commit to the last finish, and bytes of WAL."""
    _, position = connection.execute(_NOW).fetchall()[0]
    connection.execute(_FLOWS, {"jobs": jobs, "levels": levels, "width": width})
    committed, _ = connection.execute(_NOW).fetchall()[0]
    wait(connection)
    seconds, written = connection.execute(_SINCE, (committed, position)).fetchall()[0]
    return seconds, written


def wait(connection: Connection) -> None:
    deadline = monotonic() + 300
    while connection.execute(_ARE_LEFT).fetchall() == [(True,)]:
        if monotonic() > deadline:
            raise TimeoutError("the jobs did not finish")
        sleep(0.1)

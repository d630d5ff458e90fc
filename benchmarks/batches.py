"""`python -m benchmarks.batches`: batches, flows, jobs that wait for events, and undone steps."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from statistics import median
from time import monotonic, perf_counter, sleep, time
from typing import TYPE_CHECKING, Any

import psycopg

import drain
from benchmarks import alone, figures, flows, rates
from benchmarks.dependent_jobs import node, steps, undone, waiting
from benchmarks.peers.results import spread
from benchmarks.processes import environment
from drain.enqueuer.enqueuer import SESSION
from drain.tables import waits
from drain.tables.columns import PARKED_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drain.embedded import Services

    Row = tuple[str, str]

# Full and short sizes.
SIZES = {"most": (1_000_000, 5000), "members": (100_000, 2000), "jobs": (300, 20), "rounds": (3, 1)}
_CONNECTIONS = 10
_HAS_ENDED = "SELECT EXISTS (SELECT FROM finished_jobs WHERE id = %s) AND EXISTS (SELECT FROM inflight_jobs)"
_OPEN = """
INSERT INTO job_waits (job_id, name, event, fencing_token)
SELECT 1000000000 + n, 'wait', 'open:' || n, 1 FROM generate_series(1, %s) AS n
"""
_PARK = f"""
WITH parked AS (UPDATE inflight_jobs SET next_run_at = {PARKED_AT} RETURNING id, staged_by)
INSERT INTO job_waits (job_id, name, event, staged_by, fencing_token) SELECT id, 'wait', 'all', staged_by, 1 FROM parked
"""
_ANSWERS = "SELECT job_args ->> 0, result::float8 FROM finished_jobs WHERE job_name = 'benchmark.waiting'"
_MEDIANS = "SELECT result FROM finished_jobs WHERE job_name = 'benchmark.steps'"
_UNDONE = """
SELECT extract(epoch FROM done.finished_at - dead.died_at)::float8
FROM finished_jobs AS done JOIN job_edges ON child_id = done.id JOIN dead_jobs AS dead ON dead.id = parent_id
WHERE done.job_name = 'drain.undo'
"""


def section(started: Services, *, most: int, members: int, jobs: int, rounds: int) -> str:
    """Measure and return the figures as Markdown."""
    figures.say("batches")
    rows = []
    for found in (
        _staged(started, most, members, range(rounds)),
        _fan_in(started, members, range(rounds)),
        _graph(started, members),
        _waits(started, jobs),
        _looks(started, members, range(rounds)),
        _undo(started, jobs),
    ):
        for row in found:
            rows.append(row)
            figures.say(f"  {row[0]}: {row[1]}")
    return f"{figures.table(('', 'measured'), rows)}\n\nOther programs used the machine at the same time."


def _plain(connection: psycopg.Connection[Any], number: int) -> int:
    return drain.stage_many(connection, node, ((),) * number)[0]


def _batch(connection: psycopg.Connection[Any], number: int) -> int:
    with drain.batch(connection, on_success=node) as batch:
        batch.stage_many(node, ((),) * number)
    return batch.id


def _staged(started: Services, most: int, members: int, rounds: range) -> Iterator[Row]:
    def stage(act: Callable[..., int], number: int) -> tuple[float, int]:
        rates.refill(started, 0)
        with psycopg.connect(started.database_url) as connection:
            began = perf_counter()
            found = act(connection, number)
            connection.commit()
            return perf_counter() - began, found

    turns = [(stage(_plain, members)[0], *stage(_batch, members)) for _ in rounds]
    plain, batch, flows_of_turns = zip(*turns, strict=True)
    yield f"{members:,} members staged by `batch.stage_many`, s", spread(batch, ".2f")
    yield "… ratio to plain `stage_many`", figures.ratio(batch, plain, 2)
    yield from _shown(started, flows_of_turns[-1], members, rounds)
    yield from _joined(started, flows_of_turns[-1])
    took, flow = stage(_batch, most)
    yield f"{most:,} members staged by `batch.stage_many`, s", f"{took:.1f}"
    yield (
        f"… ratio to {most // members} times {members:,} plain jobs",
        f"{took / median(plain) / (most // members):.2f}",
    )
    yield from _shown(started, flow, most, rounds)


def _shown(started: Services, flow: int, members: int, rounds: range) -> Iterator[Row]:
    environ = environment(started)
    words = [sys.executable, "-m", "drain", "flow", "show", str(flow)]
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        counts = [_seconds(lambda: drain.flow_progress(connection, flow)) for _ in rounds]
    shows = [
        _seconds(lambda: subprocess.run(words, check=True, capture_output=True, env=environ)) for _ in rounds
    ]
    yield f"`drain_flow_progress` of {members:,} members, s", spread(counts, ".2f")
    yield f"`drain flow show` of {members:,} members, s", spread(shows, ".2f")


def _joined(started: Services, flow: int) -> Iterator[Row]:
    def stage(flow: int | None) -> list[float]:
        with psycopg.connect(started.database_url) as connection:

            def commit() -> None:
                drain.stage(connection, node, flow=flow)
                connection.commit()

            return [_seconds(commit) for _ in range(100)]

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        plain, joins = (
            list(chain.from_iterable(pool.map(stage, [each] * _CONNECTIONS))) for each in (None, flow)
        )
    yield f"a transaction that adds a member, of {_CONNECTIONS} at once, p50 and p99, ms", _pair(joins)
    yield "… of a plain job", _pair(plain)


def _fan_in(started: Services, members: int, rounds: range) -> Iterator[Row]:
    for together in (members, 100):
        taken = [_ended(started, members, together) for _ in rounds]
        yield (
            f"end of a batch of {members:,} that finish in transactions of {together:,}, s",
            spread(taken, ".2f"),
        )


def _ended(started: Services, members: int, together: int) -> float:
    """Finish members in flight; returns the seconds until the batch has ended and its callback is in flight."""
    rates.refill(started, 0)
    ended: list[float] = []
    redis = rates.DiscardingProducer(started.redis_url, rates.NAMESPACE)
    url = started.database_url
    with rates.leading(started, redis) as enqueuer, psycopg.connect(url, autocommit=True) as other:
        with other.transaction():
            flow = _batch(other, members)
        enqueuer.drain()
        ids = [id_ for (id_,) in other.execute("SELECT id FROM inflight_jobs ORDER BY id")]

        def finish() -> None:
            for first in range(0, members, together):
                other.execute(flows.FINISH, (ids[first : first + together],))
            ended.append(perf_counter())

        thread = threading.Thread(target=finish)
        thread.start()
        while not ended or other.execute(_HAS_ENDED, (flow,)).fetchall() != [(True,)]:
            enqueuer.run_once()
        thread.join()
        return perf_counter() - ended[0]


def _graph(started: Services, nodes: int) -> Iterator[Row]:
    """Stage levels of ten nodes that each wait for two nodes of the previous level."""
    rates.refill(started, 0)
    flow = drain.Flow("benchmark")
    for number in range(nodes):
        level = number - number % 10
        after = [str(level - 10 + (number + step) % 10) for step in (0, 1)] if level else None
        flow.add(str(number), node, after=after)
    with psycopg.connect(started.database_url) as connection:
        began = perf_counter()
        flow.stage(connection)
        connection.commit()
        taken = perf_counter() - began
    yield f"a flow of {nodes:,} nodes with 2 edges each, `stage`, s", f"{taken:.1f}"


def _waits(started: Services, jobs: int) -> Iterator[Row]:
    with flows.running(started) as connection:
        drain.stage_many(connection, waiting, ((str(number),) for number in range(jobs)))
        _wait(connection, f"SELECT count(*) = {jobs} FROM job_waits")
        emitted = {}
        for number in range(jobs):
            drain.emit(connection, str(number))
            emitted[str(number)] = time()
            sleep(0.03 + number % 7 * 0.003)
        _wait(connection, f"SELECT count(*) = {jobs} FROM ({_ANSWERS}) AS answers")
        taken = [at - emitted[event] for event, at in connection.execute(_ANSWERS).fetchall()]
    yield f"from an event until its job runs again, {jobs} jobs, p50 and p99, ms", _pair(taken)


def _looks(started: Services, most: int, rounds: range) -> Iterator[Row]:
    rates.refill(started, 0)
    redis = rates.DiscardingProducer(started.redis_url, rates.NAMESPACE)
    with rates.leading(started, redis) as enqueuer:
        connection = enqueuer.connection
        connection.execute("; ".join(SESSION))
        looks: dict[int, list[float]] = {0: [], most: []}
        for _ in rounds:
            for number, seconds in looks.items():
                connection.execute("TRUNCATE job_waits")
                connection.execute(_OPEN, (number,))
                last = waits.match(connection, None).snapshot
                taken = [_seconds(partial(waits.match, connection, last)) for _ in range(300)]
                seconds.append(1000 * median(taken))
        for number, milliseconds in looks.items():
            yield f"a look while {number:,} jobs wait, ms", spread(milliseconds, ".2f")
        connection.execute(rates.FILL, (most // 10,))
        enqueuer.drain()
        connection.execute(_PARK)
        last = waits.match(connection, None).snapshot
        drain.emit(connection, "all")
        began, ended = perf_counter(), 0
        while ended < most // 10:
            ended += waits.match(connection, last).ended
    yield f"an event for {most // 10:,} of these jobs, until all are due, s", f"{perf_counter() - began:.2f}"


def _undo(started: Services, jobs: int) -> Iterator[Row]:
    with flows.running(started) as connection:
        drain.stage(connection, steps, [10 * jobs])
        flows.wait(connection)
        (((plain, with_undo),),) = connection.execute(_MEDIANS).fetchall()
        for _ in range(jobs):
            drain.stage(connection, undone)
            sleep(0.04)
        _wait(connection, f"SELECT count(*) = {jobs} FROM ({_UNDONE}) AS undone")
        taken = [seconds for (seconds,) in connection.execute(_UNDONE).fetchall()]
    yield "a step with `undo`, p50, ms (without)", f"{1000 * with_undo:.2f} ({1000 * plain:.2f})"
    yield f"from a death until 3 steps are undone, {jobs} jobs, p50 and p99, ms", _pair(taken)


def _pair(seconds: Sequence[float]) -> str:
    return " and ".join(figures.milliseconds(seconds, percent) for percent in (50, 99))


def _wait(connection: psycopg.Connection[Any], query: str) -> None:
    deadline = monotonic() + 120
    while connection.execute(query.encode()).fetchall() != [(True,)]:
        if monotonic() > deadline:
            raise TimeoutError(query)
        sleep(0.02)


def _seconds(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


if __name__ == "__main__":
    alone.run("batches", section, SIZES)

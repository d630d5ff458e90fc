"""`python -m benchmarks.overheads`: overhead of hooks and of OpenTelemetry, alternately with and without.

Staging is measured as an INSERT in an open transaction, and as a transaction of one job including its commit. The SDK
passes spans to a batch processor whose exporter drops them. Unused hooks are measured separately, because they cost far
less than the noise of a job.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from statistics import median
from time import monotonic, perf_counter
from typing import Any
from uuid import UUID

import psycopg
import sqlalchemy
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sqlalchemy.orm import Session

from benchmarks import servers
from drain import hooks, job, stage
from drain.contrib.telemetry.opentelemetry import DrainInstrumentor
from drain.tables.claims import Claim
from drain.workers.context.current import Attempt
from drain.workers.execution.attempt import run
from drain.workers.lease.heartbeat import Heartbeat

_NOWHERE = "postgresql://nowhere"


@job
def nothing(_number: int) -> None:
    """Do nothing."""


class _Dropped(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        del spans
        return SpanExportResult.SUCCESS


@contextmanager
def instrumented(provider: TracerProvider) -> Iterator[None]:
    """Instrument the drain while the block runs."""
    DrainInstrumentor().instrument(tracer_provider=provider)
    try:
        yield
    finally:
        DrainInstrumentor().uninstrument()


def staging_seconds(connection: Any, jobs: int, *, commits: bool) -> float:
    """Stage jobs, each in its own transaction or all in one that is rolled back; returns the seconds of one."""
    began = perf_counter()
    for number in range(jobs):
        stage(connection, nothing, [number])
        if commits:
            connection.commit()
    took = perf_counter() - began
    connection.rollback()
    return took / jobs


def staging(connection: Any, jobs: int, rounds: int, *, commits: bool) -> tuple[float, float, float]:
    """Measure in turns; returns median seconds without and with spans, and the median ratio of the turns."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_Dropped()))
    without: list[float] = []
    with_spans: list[float] = []
    staging_seconds(connection, jobs, commits=commits)
    for number in range(rounds):
        turns: list[Callable[[], None]] = [
            lambda: without.append(staging_seconds(connection, jobs, commits=commits))
        ]

        def traced() -> None:
            with instrumented(provider):
                with_spans.append(staging_seconds(connection, jobs, commits=commits))

        turns.append(traced)
        for turn in turns[:: 1 if number % 2 else -1]:
            turn()
    provider.shutdown()
    return (
        median(without),
        median(with_spans),
        median(b / a for a, b in zip(without, with_spans, strict=True)),
    )


def unused_hooks_seconds() -> float:
    """Measure what unused hooks cost an attempt: a look at an empty tuple."""
    number = 1_000_000
    looking, empty = (
        min(timeit.repeat(statement, number=number, repeat=9, globals={"hooks": hooks}))
        for statement in ("if hooks.around_hooks: raise ValueError", "pass")
    )
    return (looking - empty) / number


def attempt_seconds() -> float:
    """Measure an attempt at a job that does nothing, without any store: a worker's minimum cost per job."""
    claim = Claim(
        *(1, nothing.job_name, "[1]", "{}", "default", None, None, 1, 3, 30, 30.0, 1, datetime.now(UTC)),
        *(False, False, None, "w", UUID(int=0)),
    )
    attempts: list[Attempt] = []
    heartbeat = Heartbeat(_NOWHERE, lambda: attempts)

    def act(end: Callable[..., None] = lambda act, *_: act(None, 60.0)) -> None:
        run(Attempt(claim, monotonic(), heartbeat, _NOWHERE), end)

    number = 20_000
    seconds = min(timeit.repeat(act, number=number, repeat=5)) / number
    heartbeat.stop()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=50, help="Jobs staged in one turn.")
    parser.add_argument("--rounds", type=int, default=61, help="Turns with and without.")
    options = parser.parse_args()
    with servers.running(servers.EMBEDDED) as services:
        url = services.database_url
        with psycopg.connect(url) as connection:
            _tell("psycopg", connection, options)
        engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
        with Session(engine) as session:
            _tell("SQLAlchemy", session, options)
        engine.dispose()
    unused, attempt = unused_hooks_seconds(), attempt_seconds()
    print(
        f"unused hooks: {unused * 1e9:.0f} ns, of {attempt * 1e6:.1f} us of an attempt without stores: "
        f"{unused / attempt:.2%}"
    )


def _tell(driver: str, connection: Any, options: argparse.Namespace) -> None:
    for commits, what in ((False, "in an open transaction"), (True, "and commit")):
        without, with_spans, ratio = staging(connection, options.jobs, options.rounds, commits=commits)
        print(
            f"stage() with {driver}, {what}: {without * 1e6:.0f} us without, {with_spans * 1e6:.0f} us with spans, "
            f"ratio {ratio:.3f}"
        )


if __name__ == "__main__":
    main()

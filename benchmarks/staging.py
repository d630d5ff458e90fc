"""Cost of staging, compared with inserts into a table without checks, triggers and partitions."""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import TYPE_CHECKING

import psycopg

from benchmarks import figures, rates
from drain import stage_many

if TYPE_CHECKING:
    from collections.abc import Callable

    from drain.embedded import Services

_PLAIN = "CREATE TABLE plain_jobs (LIKE staged_jobs INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (id))"
_INSERT = "INSERT INTO {} (job_name, job_args) VALUES ('shop.jobs.send_receipt', %s)"
_COPY = "COPY {} (job_name, job_args) FROM STDIN"


def section(services: Services, jobs: int, rounds: int) -> str:
    """Measure the rows a second of both tables, singly and in bulk; returns Markdown."""
    figures.say("staging")
    ways: dict[str, Callable[[], float]] = {
        "staged in single transactions": lambda: _singly(services, "staged_jobs", jobs // 20),
        "the same `INSERT`s into a plain table": lambda: _singly(services, "plain_jobs", jobs // 20),
        "staged in bulk, `drain.stage_many`": lambda: _staged_many(services, jobs),
        "staged in bulk, `COPY`": lambda: _copied(services, "staged_jobs", jobs),
        "`COPY` into the plain table": lambda: _copied(services, "plain_jobs", jobs),
    }
    measured: dict[str, list[float]] = {name: [] for name in ways}
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS plain_jobs; {_PLAIN}")
        for _ in range(rounds):
            for name, way in ways.items():
                rates.refill(services, 0)
                connection.execute("TRUNCATE plain_jobs")
                measured[name].append(way())
            figures.say("  " + ", ".join(f"{values[-1]:,.0f}" for values in measured.values()))
        connection.execute("DROP TABLE plain_jobs")
    single, plain_single, many, copied, plain_copied = measured.values()
    table = figures.table(
        ("way", "rows a second", "lowest – highest"),
        [
            (name, f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for name, v in measured.items()
        ],
    )
    ratios = figures.table(
        ("staging's rate is", "measured"),
        [
            ("… of the plain table's, in single transactions", figures.ratio(single, plain_single, 2)),
            ("… of the plain table's `COPY`, by `stage_many`", figures.ratio(many, plain_copied, 2)),
            ("… of the plain table's `COPY`, by `COPY`", figures.ratio(copied, plain_copied, 2)),
        ],
    )
    return (
        f"## What it costs to stage\n\n{table}\n\n{ratios}\n\n"
        "The plain table has the same columns and a primary key, but no checks, triggers, partitions or index for "
        "the enqueuer. One connection; each single transaction waits until its COMMIT is on disk."
    )


def _singly(services: Services, table: str, rows: int) -> float:
    statement = _INSERT.format(table)
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        return _rate(rows, lambda: [connection.execute(statement, (_arguments(n),)) for n in range(rows)])


def _staged_many(services: Services, rows: int) -> float:
    def stage() -> None:
        with psycopg.connect(services.database_url) as connection:
            stage_many(connection, "shop.jobs.send_receipt", ((n, f"user{n}") for n in range(rows)))

    return _rate(rows, stage)


def _copied(services: Services, table: str, rows: int) -> float:
    def copy() -> None:
        with (
            psycopg.connect(services.database_url) as connection,
            connection.cursor().copy(_COPY.format(table)) as lines,
        ):
            for number in range(rows):
                lines.write_row(("shop.jobs.send_receipt", _arguments(number)))

    return _rate(rows, copy)


def _arguments(number: int) -> str:
    return f'[{number}, "user{number}"]'


def _rate(rows: int, act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return rows / (perf_counter() - began)

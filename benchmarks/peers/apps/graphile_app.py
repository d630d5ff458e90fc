"""Graphile Worker on Node.js: `graphile_app.mjs` runs the jobs; its SQL functions add them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from benchmarks.peers import work

if TYPE_CHECKING:
    from collections.abc import Callable

_ADD_MANY = """
SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
    SELECT json_populate_record(NULL::graphile_worker.job_spec, json_build_object(
        'identifier', %(name)s::text,
        'payload', CASE WHEN %(name)s LIKE 'update%%' THEN json_build_object('number', n) END))
    FROM generate_series(0, %(jobs)s - 1) AS n))
"""
_ADD = "SELECT FROM graphile_worker.add_job('started', json_build_object('number', %s::integer))"


def prepare() -> None:
    subprocess.run(
        [Path(sys.prefix) / "bin" / "node", Path(sys.prefix) / "graphile_app.mjs", "prepare"], check=True
    )


def fill(name: str, jobs: int) -> None:
    with psycopg.connect(work.database_url()) as connection:
        connection.execute(_ADD_MANY, {"name": name, "jobs": jobs})


def producer() -> Callable[[int], float]:
    connection = psycopg.connect(work.database_url())

    def commit(number: int) -> float:
        connection.execute(work.ORDER.format("%s"), (number,))
        connection.execute(_ADD, (number,))
        connection.commit()
        return time.monotonic()

    return commit

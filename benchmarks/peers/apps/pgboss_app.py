"""pg-boss on Node.js: `pgboss_app.mjs` runs the jobs; SQL inserts them, as documented for its job table."""

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

_INSERT_MANY = """
INSERT INTO pgboss.job (name, data)
SELECT %(name)s, CASE WHEN %(name)s LIKE 'update%%' THEN jsonb_build_object('number', n) END
FROM generate_series(0, %(jobs)s - 1) AS n
"""
# With the same notification as its `send`.
_INSERT = """
WITH sent AS (
    INSERT INTO pgboss.job (name, data) VALUES ('started', jsonb_build_object('number', %s::integer)) RETURNING name)
SELECT pg_notify('pgboss_' || left(encode(sha224('pgboss'), 'hex'), 24), name) FROM sent
"""


def prepare() -> None:
    subprocess.run(
        [Path(sys.prefix) / "bin" / "node", Path(sys.prefix) / "pgboss_app.mjs", "prepare"], check=True
    )


def fill(name: str, jobs: int) -> None:
    with psycopg.connect(work.database_url()) as connection:
        connection.execute(_INSERT_MANY, {"name": name, "jobs": jobs})


def producer() -> Callable[[int], float]:
    connection = psycopg.connect(work.database_url())

    def commit(number: int) -> float:
        connection.execute(work.ORDER.format("%s"), (number,))
        connection.execute(_INSERT, (number,))
        connection.commit()
        return time.monotonic()

    return commit

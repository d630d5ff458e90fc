"""Admission rate in a queue with rules, and how long a key waits behind a million jobs of another.

    python -m benchmarks.admission [--quick] [--rows 1000000] [--keys 10000] [--seconds 10] [--rounds 3]

One process acts as the leader. Another acts as the workers and finishes all admitted jobs. Nothing is pushed.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, process_time, sleep
from typing import TYPE_CHECKING

import psycopg
from psycopg import IsolationLevel

from benchmarks import alone, figures, held_snapshot, rates
from drain.admission.keyed_queue import RuledQueue
from drain.admission.rules import Rules
from drain.database import postgres
from drain.enqueuer.enqueuer import SESSION
from drain.tables import staged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drain.embedded import Services
    from drain.tables.staged import DueJob

_QUEUE = "admitted"
_FILL = """
INSERT INTO staged_jobs (job_name, queue, key)
SELECT 'benchmark.nothing', 'admitted', 'k' || number %% %s FROM generate_series(1, %s) AS number ORDER BY random()
"""
_FILL_KEY = """
INSERT INTO staged_jobs (job_name, queue, key)
SELECT 'benchmark.nothing', 'admitted', %s || CASE WHEN %s THEN number::text ELSE '' END
FROM generate_series(1, %s) AS number
"""
_FINISH = """
WITH done AS (
    DELETE FROM inflight_jobs WHERE id = ANY (ARRAY (
        SELECT id FROM inflight_jobs
        WHERE lease_expires_at IS NULL AND next_run_at IS NULL AND queue = 'admitted' AND delivery > %s
        ORDER BY delivery LIMIT %s)) RETURNING delivery
) SELECT coalesce(max(delivery), %s) FROM done
"""
# Full and short sizes.
SIZES = {"rows": (1_000_000, 100_000), "keys": (10_000, 1000), "seconds": (10.0, 3.0), "rounds": (3, 1)}
_TURNS = Rules(_QUEUE, running=8000, running_per_key=4, fair=True)
_ORDERED = Rules(_QUEUE, running=8000, ordered=True)
# Rules of the queue, and whether another session holds a snapshot.
_CASES = {
    "keys take turns": (_TURNS, False),
    "… and a snapshot is held": (_TURNS, True),
    "ordered": (_ORDERED, False),
}
_BATCH = 2500
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Admitting:
    """The leader's work: look, select, move, commit."""

    def __init__(self, connection: postgres.Connection, rules: Rules) -> None:
        connection.execute("; ".join(SESSION))
        self.connection = connection
        self.queue = RuledQueue(connection, rules)
        self.admitted = 0

    def batch(self) -> Sequence[DueJob]:
        self.queue.look()
        with postgres.transaction(self.connection, IsolationLevel.REPEATABLE_READ):
            rows = self.queue.select(_BATCH)
            if rows:
                staged.move(self.connection, [row.id for row in rows], self.admitted)
        self.queue.admitted(rows)
        self.admitted += len(rows)
        if not rows:
            sleep(0.002)
        return rows


@dataclass(frozen=True, slots=True)
class Rate:
    """Admissions a second, processor time per admission in the leader and its session, and the leader's memory."""

    per_second: float
    leader_us: float
    server_us: float
    megabytes: float


@contextmanager
def admitting(started: Services, rules: Rules, at_once: int) -> Iterator[Admitting]:
    """Lead while another process finishes up to `at_once` jobs at a time."""
    worker = os.fork()
    if not worker:
        _finish_for_ever(started.database_url, at_once)
    try:
        with postgres.connect(started.database_url, "benchmark") as connection:
            yield Admitting(connection, rules)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def _finish_for_ever(database_url: str, at_once: int) -> None:
    last = 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off; SET enable_seqscan = off; SET jit = off")
        while True:
            before = last
            ((last,),) = connection.execute(_FINISH, (last, at_once, last)).fetchall()
            if last == before:
                sleep(0.005)


def rate(started: Services, rows: int, keys: int, seconds: float, rules: Rules, *, held: bool) -> Rate:
    """Measure admissions under these rules from `rows` rows of `keys` keys."""
    rates.refill(started, 0)
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        connection.execute(_FILL, (keys, rows))
        connection.execute("ANALYZE staged_jobs")
    snapshot = held_snapshot.held_snapshot(started) if held else nullcontext()
    with snapshot, admitting(started, rules, at_once=2000) as leader:
        server = leader.connection.info.backend_pid
        began, own, its = monotonic(), process_time(), _server_seconds(server)
        while (elapsed := monotonic() - began) < seconds:
            leader.batch()
        own, its = process_time() - own, _server_seconds(server) - its
        count = max(1, leader.admitted)
        return Rate(count / elapsed, own * 1e6 / count, its * 1e6 / count, _megabytes())


def wait_behind(started: Services, rows: int, keys: int) -> tuple[float, dict[str, float]]:
    """Measure how long the last of some keys waits behind another key's backlog, and turns by weight."""
    rates.refill(started, 0)
    rules = Rules(_QUEUE, running=1000, fair=True, weights={"w2": 2, "w3": 3})
    with (
        psycopg.connect(started.database_url, autocommit=True) as application,
        admitting(started, rules, at_once=500) as leader,
    ):
        application.execute(_FILL_KEY, ("big", False, rows))
        while leader.admitted < rows // 50:
            leader.batch()
        application.execute(_FILL_KEY, ("small", True, keys))
        began, left = monotonic(), keys
        while left:
            left -= sum((row.key or "").startswith("small") for row in leader.batch())
        waited = monotonic() - began
        for key in ("w1", "w2", "w3"):
            application.execute(_FILL_KEY, (key, False, rows // 20))
        counts = Counter[str | None]()
        while counts["w3"] < rows // 40:
            counts.update(row.key for row in leader.batch())
    return waited, {key: counts[key] / counts["w1"] for key in ("w1", "w2", "w3")}


def _server_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _megabytes() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * _PAGE / 1e6


def section(started: Services, *, rows: int, keys: int, seconds: float, rounds: int) -> str:
    """Measure and return the figures as Markdown."""
    figures.say(f"admissions from {rows:,} rows of {keys:,} keys")
    found: dict[str, list[Rate]] = {name: [] for name in _CASES}
    for name in (*_CASES,) * rounds:
        rules, held = _CASES[name]
        found[name].append(each := rate(started, rows, keys, seconds, rules, held=held))
        figures.say(
            f"  {name:24} {each.per_second:,.0f} a second, {each.leader_us:.1f} + {each.server_us:.1f} us of "
            f"processor time, {each.megabytes:.0f} MB"
        )
    table = figures.table(
        ("queue", "admissions a second", "lowest – highest", "memory of the process"),
        [
            (
                name,
                f"{median(each.per_second for each in of):,.0f}",
                f"{min(each.per_second for each in of):,.0f} – {max(each.per_second for each in of):,.0f}",
                f"{max(each.megabytes for each in of):.0f} MB",
            )
            for name, of in found.items()
        ],
    )
    waits: list[float] = []
    for _ in range(rounds):
        waited, shares = wait_behind(started, rows, keys // 10)
        waits.append(waited)
        weights = ", ".join(f"{key} {share:.2f}" for key, share in shares.items())
        figures.say(
            f"  the last of {keys // 10:,} keys began after {waited:.2f} s; turns by weight: {weights}"
        )
    behind = f"{median(waits):.2f} s ({min(waits):.2f} – {max(waits):.2f})"
    return (
        f"## Admissions\n\n{table}\n\n"
        f"{rows:,} rows of {keys:,} keys. Where keys take turns, each may run four jobs at a time; in an ordered "
        f"queue, one. Goal: 20,000 a second, under 150 MB. Behind {rows:,} rows of one key, the last of "
        f"{keys // 10:,} keys started after {behind}. "
        f"Turns of keys with the weights 1, 2 and 3, in the last round: {weights}."
    )


if __name__ == "__main__":
    alone.run("admission", section, SIZES)

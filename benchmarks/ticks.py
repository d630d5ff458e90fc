"""`python -m benchmarks.ticks`: 10,000 ticks of ten schedules while 50 leaders are killed; each has exactly one job.

The ticks were missed in the last 1,000 minutes; leaders make up for them, ten per transaction. Each leader gets SIGKILL
a moment after it has started to stage them, wherever it is then.
"""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import ExitStack
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg

from benchmarks import alone, figures, rates
from benchmarks.processes import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drain.embedded import Services

# Full and short sizes.
SIZES = {"ticks": (10_000, 1000), "takeovers": (50, 5)}
_SCHEDULES = 10
_TICKS_PER_TRANSACTION = 10
_STANDBYS = 2
_PATIENCE_SECONDS = 60
_PROGRAM = f"""
from drain.enqueuer import ticker
ticker.TICKS_PER_TRANSACTION = {_TICKS_PER_TRANSACTION}
from drain.__main__ import main
main()
"""
_STAGE = """
INSERT INTO crons (name, job_name, cron, missed, next_tick_at)
SELECT 'schedule ' || number, 'm.f', '* * * * *', 'all', date_trunc('minute', now()) - make_interval(mins => %s)
FROM generate_series(1, %s) AS number
"""
_JOBS = "SELECT tag, scheduled_at FROM staged_jobs UNION ALL SELECT tag, scheduled_at FROM inflight_jobs"
_LEADER = "SELECT leader FROM drain_state"


def section(started: Services, *, ticks: int, takeovers: int) -> str:
    """Measure and return the figures as Markdown.

    Raises:
        RuntimeError: A tick has no job, or two.
    """
    figures.say(f"{ticks:,} ticks, {takeovers} takeovers")
    rates.refill(started, 0)
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        connection.execute("TRUNCATE crons")
        connection.execute(_STAGE, (ticks // _SCHEDULES, _SCHEDULES))
        killed, seconds = _stage_while_leaders_die(started, connection, ticks, takeovers)
        jobs, twice, missing = _verdict(connection)
        connection.execute("TRUNCATE crons")
    found = f"{jobs:,} ticks, {killed} takeovers, {seconds:.0f} s: {twice} ticks with two jobs, {missing} with none"
    figures.say(f"  {found}")
    if twice or missing or jobs < ticks or killed < takeovers:
        raise RuntimeError(found)
    return f"## Ticks across takeovers\n\nLeaders were killed while they staged missed ticks. {found}."


def _stage_while_leaders_die(
    started: Services, connection: psycopg.Connection, ticks: int, takeovers: int
) -> tuple[int, float]:
    """Start leaders and kill each; returns how many were killed while ticks were left, and the total seconds."""
    chance = random.Random(14)
    each = ticks // takeovers
    began = monotonic()
    killed = 0
    with ExitStack() as stack:
        processes = [_start(started, stack) for _ in range(_STANDBYS + 1)]
        while _left(connection):
            staged = _count(connection)
            enough = staged + chance.randint(1, each)
            leader = _next_leader(connection, processes)
            for _ in _until(_PATIENCE_SECONDS):
                if _count(connection) >= enough or not _left(connection):
                    break
            if killed < takeovers:
                leader.kill()
                leader.wait()
                killed += 1
                processes.remove(leader)
                processes.append(_start(started, stack))
        return killed, monotonic() - began


def _start(started: Services, stack: ExitStack) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", _PROGRAM, "run", "--metrics-port", "0"]
    process = subprocess.Popen(words, env=environment(started), stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _next_leader(
    connection: psycopg.Connection, processes: list[subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    """Wait until one of the running processes leads."""
    for _ in _until(_PATIENCE_SECONDS):
        ((name,),) = connection.execute(_LEADER)
        for process in processes:
            if name is not None and int(name.split(":")[1]) == process.pid:
                return process
    raise AssertionError


def _until(seconds: float) -> Iterator[None]:
    end = monotonic() + seconds
    while monotonic() < end:
        yield
        sleep(0.002)
    raise TimeoutError(f"nothing has happened for {seconds} s")


def _left(connection: psycopg.Connection) -> bool:
    ((left,),) = connection.execute("SELECT EXISTS (SELECT FROM crons WHERE next_tick_at <= now())")
    return bool(left)


def _count(connection: psycopg.Connection) -> int:
    ((count,),) = connection.execute(f"SELECT count(*) FROM ({_JOBS}) AS job")
    return int(count)


def _verdict(connection: psycopg.Connection) -> tuple[int, int, int]:
    """Count ticks with a job, ticks with two, and minutes without one between the first and the last."""
    statement = f"""
SELECT count(DISTINCT scheduled_at), count(*),
    extract(epoch FROM max(scheduled_at) - min(scheduled_at))::integer / 60 + 1 FROM ({_JOBS}) AS job GROUP BY tag
"""
    rows = connection.execute(statement).fetchall()
    return (
        sum(row[0] for row in rows),
        sum(row[1] - row[0] for row in rows),
        sum(row[2] - row[0] for row in rows),
    )


if __name__ == "__main__":
    alone.run("ticks", section, SIZES)

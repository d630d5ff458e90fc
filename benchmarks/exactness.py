"""Limits while everything is killed: 16 worker processes, and 200 keys that may run 1 to 5 jobs at a time.

    python -m benchmarks.exactness [--quick] [--seconds 120] [--processes 16] [--keys 200] [--seed 14]

Every few seconds, a leader, a supervisor or a worker process gets SIGKILL, or Redis is flushed. A trigger on
`inflight_jobs` records which rows start and stop running, and their keys. The exit code is 1 if a key exceeded its
limit, a job was lost, or `drain audit` finds a breach.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg
import redis

from benchmarks import alone, figures, rates
from benchmarks.processes import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drain.embedded import Services

SIZES = {"seconds": (120.0, 20.0), "processes": (16, 4), "keys": (200, 50), "seed": (14, 14)}

_JOBS = "benchmarks.admitted_jobs"
_LIMITS = (1, 2, 3, 4, 5)
_QUEUES = [f"q{limit}" for limit in _LIMITS]
_PROCESSES_OF_A_SUPERVISOR = 4
_PAUSE_SECONDS = (2.0, 5.0)
_LOOK_SECONDS = 0.25
# With fewer staged jobs, some keys run out of them.
_PLENTY = 2000
_PATIENCE_SECONDS = 240
# Jobs staged for each slot and second; each job takes a second.
_JOBS_PER_PLACE = 1.3
_DRAIN = [sys.executable, "-c", "from drain.__main__ import main; main()"]
_NOTE = """
CREATE TABLE changes (number bigserial, queue text, key text, change integer);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE ran boolean := false; runs boolean := false;
BEGIN
    IF TG_OP <> 'INSERT' THEN ran := OLD.next_run_at IS NULL; END IF;
    IF TG_OP <> 'DELETE' THEN runs := NEW.next_run_at IS NULL; END IF;
    IF ran <> runs THEN
        INSERT INTO changes (queue, key, change)
        VALUES (coalesce(NEW.queue, OLD.queue), coalesce(NEW.key, OLD.key), runs::integer - ran::integer);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON inflight_jobs FOR EACH ROW EXECUTE FUNCTION note();
"""
_FORGET = "DROP TRIGGER note ON inflight_jobs; DROP FUNCTION note(); DROP TABLE changes; DELETE FROM queues"
_STAGE = """
INSERT INTO staged_jobs (job_name, job_args, queue, key)
SELECT 'benchmarks.admitted_jobs.call', jsonb_build_array(500 + number %% 1000),
    'q' || 1 + number %% 5, 'k' || number %% %s
FROM generate_series(1, %s) AS number
"""
_MOST = """
SELECT queue, max(running) FROM (
    SELECT queue, sum(change) OVER (PARTITION BY queue, key ORDER BY number) AS running FROM changes) AS each
GROUP BY queue ORDER BY queue
"""
_RUNNING = "SELECT count(*) FROM inflight_jobs WHERE next_run_at IS NULL"
_LEFT = "SELECT (SELECT count(*) FROM (SELECT FROM staged_jobs LIMIT %s) AS few), (SELECT count(*) FROM inflight_jobs)"
_ENDED = "SELECT (SELECT count(*) FROM finished_jobs), (SELECT count(*) FROM dead_jobs)"


@dataclass(slots=True)
class Fleet:
    """Two enqueuers and enough supervisors; killed processes are restarted."""

    started: Services
    stack: ExitStack
    chance: random.Random
    jobs: str = _JOBS
    queues: Sequence[str] = tuple(_QUEUES)
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)
    works: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, processes: int) -> None:
        self.runs = [self._run() for _ in range(2)]
        self.works = [self._work() for _ in range(processes // _PROCESSES_OF_A_SUPERVISOR)]

    def kill_an_enqueuer(self) -> None:
        self._replace(self.runs, self._run)

    def kill_a_supervisor(self) -> None:
        self._replace(self.works, self._work)

    def kill_a_worker(self) -> None:
        self.signal_a_worker(signal.SIGKILL)

    def signal_a_worker(self, number: signal.Signals) -> int | None:
        """Send a signal to a worker process; returns its id, or None if none runs."""
        parent = self.chance.choice(self.works).pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
        if not children:
            return None
        chosen = int(self.chance.choice(children))
        os.kill(chosen, number)
        return chosen

    def flush_redis(self) -> None:
        with redis.Redis.from_url(self.started.redis_url) as client:
            client.flushall()

    def _replace(
        self, processes: list[subprocess.Popen[bytes]], start: Callable[[], subprocess.Popen[bytes]]
    ) -> None:
        killed = processes.pop(self.chance.randrange(len(processes)))
        killed.kill()
        killed.wait()
        processes.append(start())

    def _run(self) -> subprocess.Popen[bytes]:
        return self._start("run", "--metrics-port", "0")

    def _work(self) -> subprocess.Popen[bytes]:
        return self._start("work", *self.queues, "--processes", str(_PROCESSES_OF_A_SUPERVISOR))

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        env = environment(self.started, self.jobs)
        process = subprocess.Popen([*_DRAIN, *words], env=env, stderr=subprocess.DEVNULL)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        return process


def _disturb(fleet: Fleet, connection: psycopg.Connection, seconds: float) -> tuple[Counter[str], float]:
    """Kill and flush for `seconds`; returns the count of each fault, and the mean number of running jobs."""
    faults = (fleet.kill_an_enqueuer, fleet.kill_a_supervisor, fleet.kill_a_worker, fleet.flush_redis)
    done: Counter[str] = Counter()
    running: list[int] = []
    next_fault = monotonic() + _PAUSE_SECONDS[1]
    end = monotonic() + seconds
    while monotonic() < end:
        sleep(_LOOK_SECONDS)
        # Before the workers have started, idle capacity says nothing about limits.
        if running or _one(connection, _RUNNING):
            running.append(_one(connection, _RUNNING))
        if monotonic() >= next_fault:
            fault = fleet.chance.choice(faults)
            fault()
            done[fault.__name__] += 1
            next_fault = monotonic() + fleet.chance.uniform(*_PAUSE_SECONDS)
    return done, fmean(running)


def _wait_for_the_rest(connection: psycopg.Connection) -> None:
    until = monotonic() + _PATIENCE_SECONDS
    while any(connection.execute(_LEFT, (1,)).fetchone() or ()):
        if monotonic() > until:
            raise TimeoutError(f"jobs are left after {_PATIENCE_SECONDS} s")
        sleep(_LOOK_SECONDS)


def _one(connection: psycopg.Connection, statement: str) -> int:
    ((number,),) = connection.execute(statement).fetchall()
    return int(number)


def _drain(started: Services, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_DRAIN, *words], env=environment(started), check=False, capture_output=True, text=True
    )


def section(started: Services, *, seconds: float, processes: int, keys: int, seed: int) -> str:
    """Measure and return the figures as Markdown.

    Raises:
        RuntimeError: A key exceeded its limit, a job was lost, or the audit found a breach.
    """
    figures.say(f"limits of {keys} keys while everything is killed, {seconds:.0f} s")
    rates.refill(started, 0)
    # Each key belongs to one queue, and each queue has a fifth of the keys.
    total = sum(_LIMITS) * keys // len(_LIMITS)
    jobs = int(total * seconds * _JOBS_PER_PLACE)
    with psycopg.connect(started.database_url, autocommit=True) as connection, ExitStack() as stack:
        stack.callback(connection.execute, _FORGET)
        connection.execute(_NOTE)
        for limit, queue in zip(_LIMITS, _QUEUES, strict=True):
            _drain(started, "queue", "set", queue, "--running-per-key", str(limit)).check_returncode()
        connection.execute(_STAGE, (keys, jobs))
        fleet = Fleet(started, stack, random.Random(seed))
        fleet.start(processes)
        done, mean = _disturb(fleet, connection, seconds)
        left, _ = connection.execute(_LEFT, (_PLENTY,)).fetchone() or (0, 0)
        most: dict[str, int] = dict(connection.execute(_MOST).fetchall())
        connection.execute("DELETE FROM queues")
        _wait_for_the_rest(connection)
        finished, dead = connection.execute(_ENDED).fetchone() or (0, 0)
        audit = _drain(started, "audit")
    wrong = [
        f"{queue} ran {most[queue]}"
        for limit, queue in zip(_LIMITS, _QUEUES, strict=True)
        if most[queue] > limit
    ]
    if left < _PLENTY:
        wrong.append("too few jobs were staged to fill the limits until the end")
    if finished + dead != jobs:
        wrong.append(f"{jobs:,} staged, {finished:,} finished and {dead:,} dead")
    if audit.returncode:
        wrong.append(f"audit: {audit.stdout}{audit.stderr}")
    at_a_time = ", ".join(f"{most[queue]} of {limit}" for limit, queue in zip(_LIMITS, _QUEUES, strict=True))
    faults = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in done.items())
    figures.say(f"  utilization of limits {mean / total:.1%}; at most {at_a_time}; {faults}")
    if wrong:
        raise RuntimeError("\n".join(wrong))
    return (
        f"## Limits while everything is killed\n\n{processes} worker processes and {keys} keys for {seconds:.0f} s. At "
        f"most {at_a_time} jobs of a key ran at a time, according to a trigger on `inflight_jobs`; goal: never more. "
        f"Utilization of the limits: **{mean / total:.1%}**; goal: 90 %. Of {jobs:,} jobs, {finished:,} finished and "
        f"{dead:,} died; the audit found no breach. Faults: {faults}."
    )


if __name__ == "__main__":
    alone.run("exactness", section, SIZES)

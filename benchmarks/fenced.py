"""Steps while workers are stopped and killed and both servers crash: no effect twice or under an outdated token.

    python -m benchmarks.fenced [--quick] [--steps 1000000] [--seed 16]

Each step inserts a row with its claim's token, in its own transaction, into a table without keys. A trigger on
`inflight_jobs` records each claim. PostgreSQL's commit timestamps then show whether a row was committed after a newer
claim. The exit code is 1 if one was, or if a row is missing or duplicated.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from benchmarks import alone, figures, rates
from benchmarks.exactness import Fleet
from drain import LeaseLostError, current_job, job, psycopg_step_transaction

if TYPE_CHECKING:
    from drain.embedded import Services

SIZES = {"steps": (1_000_000, 4000), "seed": (16, 16)}

_MODULE, _QUEUE = "benchmarks.fenced", "fenced"
_STEPS_OF_A_JOB = 20
_PROCESSES = 4
_LEASE_SECONDS = 2
_STOPPED_SECONDS = (2.5, 6.0)
_PAUSE_SECONDS = (0.5, 2.0)
_LOOK_SECONDS = 0.25
_PATIENCE_SECONDS = 300
# Relative frequencies: a restart of PostgreSQL costs all workers a second.
_STOP, _KILL, _CRASH = 12, 5, 1
_MAKE = """
CREATE TABLE fenced_effects (job_id bigint, step integer, token bigint);
CREATE TABLE fenced_claims (job_id bigint, token bigint);
CREATE TABLE fenced_refusals (job_id bigint, token bigint);
CREATE FUNCTION fenced_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO fenced_claims VALUES (NEW.id, NEW.fencing_token);
    RETURN NULL;
END $$;
CREATE TRIGGER fenced_note AFTER UPDATE ON inflight_jobs FOR EACH ROW
    WHEN (OLD.fencing_token <> NEW.fencing_token) EXECUTE FUNCTION fenced_note();
"""
_FORGET = """
DROP TRIGGER fenced_note ON inflight_jobs;
DROP FUNCTION fenced_note();
DROP TABLE fenced_effects, fenced_claims, fenced_refusals;
"""
_STAGE = "INSERT INTO staged_jobs (job_name, queue) SELECT 'benchmark.fenced', 'fenced' FROM generate_series(1, {})"
_EFFECT = "INSERT INTO fenced_effects VALUES (%s, %s, %s)"
_REFUSAL = "INSERT INTO fenced_refusals VALUES (%s, %s)"
_LOOK = """
SELECT EXISTS (SELECT FROM staged_jobs) OR EXISTS (SELECT FROM inflight_jobs), (SELECT count(*) FROM finished_jobs)
"""
_COUNT = """
SELECT count(*) AS done, count(*) FILTER (WHERE times > 1) AS twice,
    (SELECT count(DISTINCT (effect.job_id, effect.step))
     FROM fenced_effects AS effect
     JOIN fenced_claims AS claim ON claim.job_id = effect.job_id AND claim.token > effect.token
     WHERE pg_xact_commit_timestamp(claim.xmin) < pg_xact_commit_timestamp(effect.xmin)) AS outdated,
    (SELECT count(*) FROM fenced_effects WHERE pg_xact_commit_timestamp(xmin) IS NULL)
        + (SELECT count(*) FROM fenced_claims WHERE pg_xact_commit_timestamp(xmin) IS NULL) AS undated,
    (SELECT count(*) - count(DISTINCT job_id) FROM fenced_claims) AS later_claims,
    (SELECT count(*) FROM fenced_refusals) AS refused,
    (SELECT count(*) FROM finished_jobs) AS finished
FROM (SELECT count(*) AS times FROM fenced_effects GROUP BY job_id, step) AS steps
"""


class Count(NamedTuple):
    """Result of `_COUNT`: `outdated` steps were committed after a newer claim."""

    done: int
    twice: int
    outdated: int
    undated: int
    later_claims: int
    refused: int
    finished: int


@job(name="benchmark.fenced", queue=_QUEUE, max_attempts=0, lease_seconds=_LEASE_SECONDS)
def fenced() -> None:
    """Insert a row per step, with the token of the claim."""
    current = current_job()
    try:
        for number in range(_STEPS_OF_A_JOB):
            psycopg_step_transaction(str(number), _leave, number)
    except LeaseLostError:
        with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
            connection.execute(_REFUSAL, (current.id, current.fencing_token))
        raise


def _leave(connection: psycopg.Connection[Any], number: int) -> None:
    current = current_job()
    connection.execute(_EFFECT, (current.id, number, current.fencing_token))


@dataclass
class Faults:
    """Random faults of the fleet and of both servers.

    Attributes:
        resumes: When each stopped process resumes, by process id.
        done: Count of each fault.
    """

    fleet: Fleet
    services: Services
    resumes: dict[int, float] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def run_once(self) -> None:
        kinds = {
            self._stop_a_worker: _STOP,
            self.fleet.kill_a_worker: _KILL,
            self.fleet.kill_a_supervisor: _CRASH,
            self.fleet.kill_an_enqueuer: _CRASH,
            self._crash_postgres: _CRASH,
            self._crash_redis: _CRASH,
        }
        (fault,) = self.fleet.chance.choices(list(kinds), list(kinds.values()))
        fault()
        self.done[fault.__name__.strip("_").replace("_", " ")] += 1

    def resume(self, *, all_: bool = False) -> None:
        for pid, at in list(self.resumes.items()):
            if all_ or monotonic() > at:
                del self.resumes[pid]
                # The supervisor may have killed it.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _stop_a_worker(self) -> None:
        if pid := self.fleet.signal_a_worker(signal.SIGSTOP):
            self.resumes[pid] = monotonic() + self.fleet.chance.uniform(*_STOPPED_SECONDS)

    def _crash_postgres(self) -> None:
        self.services.postgres.kill()
        self.services.postgres.start()

    def _crash_redis(self) -> None:
        self.services.redis.kill()
        self.services.redis.start()


def section(started: Services, *, steps: int, seed: int) -> str:
    """Disturb, count, and return the figures as Markdown; exit with 1 on any violation."""
    figures.say(f"{steps:,} steps while everything is stopped and killed")
    rates.refill(started, 0)
    _execute(started, "ALTER SYSTEM SET track_commit_timestamp = on")
    started.postgres.kill()
    started.postgres.start()
    _execute(started, _MAKE)
    jobs = steps // _STEPS_OF_A_JOB
    began = monotonic()
    with ExitStack() as stack:
        fleet = Fleet(started, stack, random.Random(seed), jobs=_MODULE, queues=(_QUEUE,))
        faults = Faults(fleet, started)
        stack.callback(faults.resume, all_=True)
        fleet.start(_PROCESSES)
        _execute(started, _STAGE.format(jobs))
        _disturb(started, faults)
    seconds = monotonic() - began
    found = Count(*_row(started, _COUNT))
    _execute(started, _FORGET)
    expected = jobs * _STEPS_OF_A_JOB
    stopped = " to ".join(f"{bound:g}" for bound in _STOPPED_SECONDS)
    text = (
        f"## Steps while everything is stopped and killed\n\n{expected:,} step transactions of {jobs:,} jobs, "
        f"{_PROCESSES} worker processes, leases of {_LEASE_SECONDS} s, {seconds:.0f} s. Effects missing: "
        f"**{expected - found.done:,}**; twice: **{found.twice:,}**; committed after a newer claim: "
        f"**{found.outdated:,}**; goal: none. {found.later_claims:,} jobs were claimed again, and "
        f"{found.refused:,} steps refused for that reason. Faults: "
        f"{', '.join(f'{name} {number}' for name, number in faults.done.items())}. Stopped workers resumed after "
        f"{stopped} s."
    )
    if found[:4] != (expected, 0, 0, 0) or found.finished != jobs:
        print(text, found)
        sys.exit(1)
    return text


def _disturb(started: Services, faults: Faults) -> None:
    """Inject faults until all jobs have ended."""
    last, at_fault, next_fault, next_line, until = 0, 0, 0.0, 0.0, monotonic() + _PATIENCE_SECONDS
    while True:
        is_left, finished = _row(started, _LOOK)
        if not is_left:
            return
        faults.resume()
        now = monotonic()
        if finished > last:
            last, until = finished, now + _PATIENCE_SECONDS
        if now > until:
            raise TimeoutError(f"no job has finished for {_PATIENCE_SECONDS} s")
        if now > next_line:
            figures.say(f"  {finished:,} jobs finished, {faults.done.total()} faults")
            next_line = now + _PATIENCE_SECONDS / 10
        # On a busy machine, workers may be killed faster than they start.
        if finished > at_fault and now > next_fault:
            faults.run_once()
            at_fault = finished
            next_fault = now + faults.fleet.chance.uniform(*_PAUSE_SECONDS)
        sleep(_LOOK_SECONDS)


def _row(started: Services, query: str) -> tuple[Any, ...]:
    with psycopg.connect(started.database_url) as connection:
        (row,) = connection.execute(query.encode()).fetchall()
    return row


def _execute(started: Services, statement: str) -> None:
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        connection.execute(statement.encode())


if __name__ == "__main__":
    alone.run("fenced", section, SIZES)

"""Drill: PostgreSQL crashes in the middle of work, and recovers from its write-ahead log.

All of its processes get a SIGKILL at once, perhaps during a batch or a claim, and with jobs that have written and not
committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from drain.database.postgres import Connection
from drills import invariants, sessions
from drills.rows import first_row, value
from drills.scenario import Scenario
from drills.shop import Shop
from drills.verdict import Evidence, Verdict

SUMMARY = "PostgreSQL crashes under load, and restarts"

# Orders placed before the crash and after it, and finished jobs that the crash waits for.
_AT_ONCE = 400
_AFTERWARDS = 100
_WORKED = 20
# Seconds between the write and the commit of a job: just long enough for the crash to come between them.
_HOLD_SECONDS = 2.5
_FINISHED = "SELECT count(*) >= %s FROM finished_jobs"
_STARTED = "SELECT pg_postmaster_start_time()"
_ACROSS = """
SELECT count(*) FILTER (WHERE finished_at < pg_postmaster_start_time()),
    count(*) FILTER (WHERE finished_at > pg_postmaster_start_time() AND staged_at < pg_postmaster_start_time())
FROM finished_jobs
"""
_FENCE = "SELECT fencing_token FROM finished_jobs WHERE id = %s"


@dataclass(frozen=True, slots=True)
class Crash:
    """Crash of the server: the time when it had been started, and the job that had written and not committed."""

    started_at: datetime
    job_id: int


def run(scenario: Scenario) -> Verdict:
    """Bring about the race, and judge its end."""
    scenario.enqueuer("enqueuer")
    scenario.workers("worker 1", "worker 2")
    started_at = scenario.value(_STARTED)
    (order,) = scenario.place(hold_seconds=_HOLD_SECONDS)
    session = scenario.wait("a job writes", lambda: sessions.writing_job(scenario.connection))
    scenario.record("written_not_committed", job_id=order.job_id, transaction=session.transaction)
    with Shop(scenario.database_url) as shop:
        scenario.place(_AT_ONCE)
        scenario.wait("the other worker is at work", lambda: scenario.value(_FINISHED, _WORKED))
        scenario.servers.postgres.kill()
        scenario.record("killed", process="PostgreSQL", signal="SIGKILL")
        scenario.servers.postgres.start()
        scenario.reconnect()
        scenario.record("recovered", process="PostgreSQL")
        scenario.place(_AFTERWARDS)
    scenario.wait_until_settled()
    return judge(scenario.connection, Crash(started_at, order.job_id), shop.committed)


def judge(connection: Connection, crash: Crash, confirmed: Sequence[int] = ()) -> Verdict:
    """Judge the drill by the tables."""
    before, across = first_row(connection, _ACROSS) or (0, 0)
    token = value(connection, _FENCE, crash.job_id) or 0
    later = (value(connection, _STARTED) - crash.started_at).total_seconds()
    return Verdict(
        happened=f"PostgreSQL crashed after {before:,} jobs and before {across:,} that were staged",
        race=[
            Evidence(
                "pg_postmaster_start_time: it has changed",
                f"started {later:.1f} s after the one before",
                holds=later > 0,
            ),
            Evidence(
                "finished_jobs: some were staged before the crash and finished after it",
                f"{across:,} jobs across the crash",
                holds=across > 0,
            ),
            Evidence(
                "finished_jobs: the job that had written has fencing token 2 or more",
                f"fencing token {token}",
                holds=token >= 2,
            ),
        ],
        survival=invariants.check(connection, confirmed),
    )

"""Drill: a worker is killed in the middle of a job, after its write and before its commit.

Its lease runs out, and the job runs again on RQ's own worker, unmodified, which also runs the jobs that have queued up
behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from drain.database.postgres import Connection
from drills import invariants, sessions
from drills.rows import first_row
from drills.scenario import Scenario
from drills.verdict import Evidence, Verdict

SUMMARY = "a worker is killed while it runs a job"

# Jobs queued behind the one that is killed, and the seconds between its write and its commit.
_BEHIND = 5
_HOLD_SECONDS = 20.0
_CLAIMED_BY = "SELECT claimed_by FROM inflight_jobs WHERE id = %s"
_NOW = "SELECT clock_timestamp()"
_FINISH = """
SELECT fencing_token, attempts, finished_by, extract(epoch FROM finished_at - %s)::float8
FROM finished_jobs WHERE id = %s
"""


@dataclass(frozen=True, slots=True)
class Death:
    """Death of a worker: its job, its name and open transaction, and the time by the database's clock."""

    job_id: int
    worker: str
    transaction: str
    at: object


def run(scenario: Scenario) -> Verdict:
    """Bring about the race, and judge its end."""
    scenario.enqueuer("enqueuer")
    (victim,) = scenario.workers("worker 1")
    (order,) = scenario.place(hold_seconds=_HOLD_SECONDS)
    scenario.place(_BEHIND)
    session = scenario.wait("the job writes", lambda: sessions.writing_job(scenario.connection))
    worker = scenario.value(_CLAIMED_BY, order.job_id)
    scenario.record(
        "written_not_committed", job_id=order.job_id, worker=worker, transaction=session.transaction
    )
    at = scenario.value(_NOW)
    scenario.kill(victim)
    scenario.rq_worker("rq worker")
    scenario.wait_until_settled()
    return judge(scenario.connection, Death(order.job_id, worker, session.transaction, at))


def judge(connection: Connection, death: Death) -> Verdict:
    """Judge the drill by the tables."""
    finish = first_row(connection, _FINISH, death.at, death.job_id)
    token, attempts, worker, seconds = finish or (0, 0, None, 0.0)
    became = sessions.status(connection, death.transaction)
    return Verdict(
        happened=f"a worker was killed in its job; another one finished it {seconds:.1f} s later",
        race=[
            Evidence(
                "finished_jobs: the fencing token is 2 or more", f"fencing token {token}", holds=token >= 2
            ),
            Evidence(
                "finished_jobs: it took 2 attempts or more", f"{attempts} attempts", holds=attempts >= 2
            ),
            Evidence(
                "pg_xact_status: the writes of the killed worker",
                f"its writes {became}",
                holds=became == "aborted",
            ),
        ],
        survival=[
            Evidence(
                "finished_jobs: another worker finished the job",
                f"by {worker}",
                holds=worker not in {None, death.worker},
            ),
            *invariants.check(connection),
        ],
    )

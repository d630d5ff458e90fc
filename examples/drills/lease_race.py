"""Drill: a worker outlives its lease, another one takes the job over, and the first comes back.

Worker A claims the job under token 1, writes in the job's transaction, and is stopped before it commits. Its
heartbeat is stopped with it, so the lease runs out, and worker B claims the job under token 2. Then A continues, and
tries to commit its writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from drain.database.postgres import Connection
from drills import invariants, sessions
from drills.rows import first_row
from drills.scenario import Scenario
from drills.verdict import Evidence, Verdict

SUMMARY = "a worker outlives its lease while another runs the job"

# Seconds between worker A's write and its commit.
_HOLD_SECONDS = 20.0
_CLAIM = "SELECT fencing_token, claimed_by FROM inflight_jobs WHERE id = %s"
_LEASE_IS_OVER = """
SELECT NOT EXISTS (
    SELECT FROM inflight_jobs WHERE id = %s AND fencing_token = %s AND lease_expires_at >= clock_timestamp())
"""
_TAKEN_OVER = """
SELECT fencing_token, claimed_by FROM inflight_jobs WHERE id = %s AND fencing_token > %s
UNION ALL SELECT fencing_token, finished_by FROM finished_jobs WHERE id = %s
"""
_FINISH = "SELECT fencing_token, finished_by FROM finished_jobs WHERE id = %s"
_REFUSED = """
SELECT stale.fencing_token, stale.claimed_by, stale.refused_at > job.finished_at
FROM stale_finishes AS stale JOIN finished_jobs AS job USING (id) WHERE id = %s
"""
_TOKENS = "SELECT array_agg(fencing_token) FROM effects WHERE job_id = %s"


@dataclass(frozen=True, slots=True)
class Race:
    """State of worker A when it was stopped: its job, its name, and its open transaction."""

    job_id: int
    worker: str
    transaction: str


def run(scenario: Scenario) -> Verdict:
    """Bring about the race, and judge its end."""
    scenario.enqueuer("enqueuer")
    (a,) = scenario.workers("worker A")
    (order,) = scenario.place(hold_seconds=_HOLD_SECONDS)
    session = scenario.wait("worker A writes", lambda: sessions.writing_job(scenario.connection))
    token, worker = scenario.wait("worker A has claimed", lambda: scenario.row(_CLAIM, order.job_id))
    scenario.record("lease_acquired", job_id=order.job_id, token=token, worker=worker)
    scenario.pause(a)
    scenario.record("written_not_committed", token=token, transaction=session.transaction)
    scenario.rq_worker("worker B")
    scenario.wait("the lease runs out", lambda: scenario.value(_LEASE_IS_OVER, order.job_id, token))
    scenario.record("lease_ran_out", job_id=order.job_id, token=token)
    new_token, other = scenario.wait(
        "worker B takes over", lambda: scenario.row(_TAKEN_OVER, order.job_id, token, order.job_id)
    )
    scenario.record("lease_acquired", job_id=order.job_id, token=new_token, worker=other)
    scenario.wait("worker B finishes the job", lambda: scenario.row(_FINISH, order.job_id))
    scenario.record("finished", job_id=order.job_id, token=new_token, worker=other)
    scenario.resume(a)
    scenario.wait("worker A is refused", lambda: scenario.row(_REFUSED, order.job_id))
    scenario.record("stale_finish_refused", job_id=order.job_id, stale_token=token, current_token=new_token)
    return judge(scenario.connection, Race(order.job_id, worker, session.transaction))


def judge(connection: Connection, race: Race) -> Verdict:
    """Judge the drill by the tables."""
    token, worker = first_row(connection, _FINISH, race.job_id) or (0, None)
    stale, stale_worker, afterwards = first_row(connection, _REFUSED, race.job_id) or (None, None, False)
    (tokens,) = first_row(connection, _TOKENS, race.job_id) or (None,)
    became = sessions.status(connection, race.transaction)
    return Verdict(
        happened=f"worker A was stopped with token 1, worker B finished with token {token}, A came back",
        race=[
            Evidence(
                "finished_jobs: the fencing token is 2 or more", f"fencing token {token}", holds=token >= 2
            ),
            Evidence(
                "finished_jobs: another worker than the first finished",
                f"finished by {worker}",
                holds=worker not in {None, race.worker},
            ),
            Evidence(
                "stale_finishes: the first worker came back after that, with its old token",
                f"token {stale} of {stale_worker} refused",
                holds=bool(afterwards)
                and stale is not None
                and stale < token
                and stale_worker == race.worker,
            ),
        ],
        survival=[
            Evidence("pg_xact_status: the writes of the first worker", became, holds=became == "aborted"),
            Evidence(
                "effects: one, under the token that finished", f"tokens {tokens}", holds=tokens == [token]
            ),
            *invariants.check(connection),
        ],
    )

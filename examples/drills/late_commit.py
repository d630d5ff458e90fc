"""Drill: a job is committed after a job with a higher id has finished.

Ids are assigned when rows are inserted, not when transactions commit. A drain that deleted all rows up to the highest
drained id would lose such a row without a trace.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from drain.database.postgres import Connection
from drills import invariants, shop
from drills.rows import value
from drills.scenario import Scenario
from drills.verdict import Evidence, Verdict

SUMMARY = "a job commits after one with a higher id has finished"

_FINISHED = "SELECT EXISTS (SELECT FROM finished_jobs WHERE id = %s)"
_SECONDS_LATER = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(orders.xmin) - overtaking.finished_at)::float8
FROM orders, finished_jobs AS overtaking WHERE orders.id = %s AND overtaking.id = %s
"""


@dataclass(frozen=True, slots=True)
class Overtaking:
    """Late commit: the order that was committed late, its job, and the job that overtook it."""

    late_order: int
    late_job: int
    overtaking_job: int


def run(scenario: Scenario) -> Verdict:
    """Bring about the race, and judge its end."""
    scenario.leader("enqueuer")
    scenario.workers("worker")
    with closing(scenario.connect()) as late:
        with late.transaction():
            (order,) = shop.place(late)
            scenario.record("staged_not_committed", job_id=order.job_id)
            (other,) = scenario.place()
            scenario.wait("the other job finishes", lambda: scenario.value(_FINISHED, other.job_id))
            scenario.record("finished", job_id=other.job_id)
        scenario.record("committed", job_id=order.job_id)
    scenario.wait_until_settled()
    return judge(scenario.connection, Overtaking(order.id, order.job_id, other.job_id))


def judge(connection: Connection, overtaking: Overtaking) -> Verdict:
    """Judge the drill by the tables."""
    late, other = overtaking.late_job, overtaking.overtaking_job
    seconds = value(connection, _SECONDS_LATER, overtaking.late_order, other)
    finished = bool(value(connection, _FINISHED, late))
    return Verdict(
        happened=f"job {late} was committed after job {other} had finished",
        race=[
            Evidence("staged_jobs: its id is the lower one", f"{late} < {other}", holds=late < other),
            Evidence(
                "pg_xact_commit_timestamp: it was committed after the other one had finished",
                "no time" if seconds is None else f"{seconds * 1000:.0f} ms after",
                holds=seconds is not None and seconds > 0,
            ),
        ],
        survival=[
            Evidence("finished_jobs: it was drained and has finished", f"{finished}".lower(), holds=finished),
            *invariants.check(connection),
        ],
    )

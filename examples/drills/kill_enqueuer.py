"""Drill: the leader is killed under load, while another enqueuer stands by.

The shop places orders all the time: staging needs no enqueuer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from drain.database.postgres import Connection
from drills import invariants
from drills.rows import first_row
from drills.scenario import Scenario
from drills.shop import Shop
from drills.verdict import Evidence, Verdict

SUMMARY = "the leader is killed under load, and a standby takes over"

# Orders placed at once, and finished jobs that the kill waits for.
_AT_ONCE = 500
_WORKED = 100
_FINISHED = "SELECT count(*) >= %s FROM finished_jobs"
_LEADER = "SELECT leader, clock_timestamp() FROM drain_state"
_TAKEOVER = "SELECT leader, coalesce(extract(epoch FROM leader_since - %s), 0)::float8 FROM drain_state"
_DRAINED = (
    "SELECT count(*) FILTER (WHERE moved_at < %s), count(*) FILTER (WHERE moved_at > %s) FROM finished_jobs"
)
# Load: the commits in the second before the kill, and in the second after.
_COMMITTED = """
SELECT count(*) FILTER (WHERE at < %s), count(*) FILTER (WHERE at > %s)
FROM (SELECT pg_xact_commit_timestamp(xmin) AS at FROM orders) AS commits
WHERE abs(extract(epoch FROM at - %s)) < 1
"""


@dataclass(frozen=True, slots=True)
class Death:
    """Death of a leader: its name, and the time by the database's clock."""

    leader: str
    at: datetime


def run(scenario: Scenario) -> Verdict:
    """Bring about the race, and judge its end."""
    first = scenario.leader("enqueuer 1")
    second = scenario.standby("enqueuer 2")
    scenario.workers("worker")
    with Shop(scenario.database_url) as shop:
        scenario.place(_AT_ONCE)
        scenario.wait("the worker is at work", lambda: scenario.value(_FINISHED, _WORKED))
        leader, at = scenario.wait("there is a leader", lambda: scenario.row(_LEADER))
        scenario.kill(first)
        scenario.wait("the standby leads", lambda: second.events("leading"))
        scenario.record("leads", process=second.name)
        scenario.place(_WORKED)
    scenario.wait_until_settled()
    return judge(scenario.connection, Death(leader, at), shop.committed)


def judge(connection: Connection, death: Death, confirmed: Sequence[int] = ()) -> Verdict:
    """Judge the drill by the tables."""
    leader, seconds = first_row(connection, _TAKEOVER, death.at) or (None, 0.0)
    drained = first_row(connection, _DRAINED, death.at, death.at) or (0, 0)
    committed = first_row(connection, _COMMITTED, death.at, death.at, death.at) or (0, 0)
    return Verdict(
        happened=f"the leader was killed, and the standby led {seconds:.2f} s later",
        race=[
            Evidence(
                "drain_state: another enqueuer leads, since after the kill",
                f"{death.leader}, then {leader}",
                holds=leader not in {None, death.leader} and seconds > 0,
            ),
            Evidence(
                "finished_jobs: both have drained",
                _before_and_after(drained, "jobs drained"),
                holds=all(drained),
            ),
            Evidence(
                "orders: it was under load",
                _before_and_after(committed, "orders committed"),
                holds=all(committed),
            ),
        ],
        survival=invariants.check(connection, confirmed),
    )


def _before_and_after(counts: Sequence[int], noun: str) -> str:
    before, after = counts
    return f"{before} {noun} before, {after} after"

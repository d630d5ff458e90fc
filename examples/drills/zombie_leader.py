"""Drill: the leader is stopped in the middle of a batch, loses its session and the leadership, and comes back.

It has moved the rows of the batch and not committed. The server ends its session, as it ends the session of a machine
that has failed. The standby drains the same rows. Then the first leader continues in the middle of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep

from programs.child import Child

from drain.database.postgres import Connection
from drills import invariants, sessions
from drills.rows import first_row, value
from drills.scenario import DidNotHappenError, Scenario
from drills.sessions import Session
from drills.shop import Shop
from drills.verdict import Evidence, Verdict

SUMMARY = "a leader is paused in a batch, and goes on too late"

# Orders placed before each attempt to stop the leader in a batch, and the number of attempts.
_AT_ONCE = 400
_TRIALS = 10
# Upper bound of the time in which a statement ends that the server was executing when its client was stopped.
_STATEMENT_SECONDS = 0.1
_LEADER = "SELECT leader, leader_since FROM drain_state"
_RETURNED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'drain run' AND backend_start > %s
"""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Leadership of the first and of the second leader, and the transaction in which the first had moved a batch."""

    first: str
    second: str
    second_since: object
    transaction: str


def run(scenario: Scenario) -> Verdict:
    """Bring about the race, and judge its end."""
    zombie = scenario.leader("enqueuer 1")
    successor = scenario.standby("enqueuer 2")
    scenario.workers("worker")
    first, _ = scenario.wait("there is a leader", lambda: scenario.row(_LEADER))
    with Shop(scenario.database_url) as shop:
        session = _stop_within_a_batch(scenario, zombie)
        sessions.end(scenario.connection, session)
        scenario.record("session_ended", process=zombie.name)
        scenario.wait("the standby leads", lambda: successor.events("leading"))
        second, since = scenario.wait("there is a leader", lambda: scenario.row(_LEADER))
        scenario.record("leads", process=successor.name)
        scenario.resume(zombie)
        scenario.wait("the first leader sees that its session is gone", lambda: zombie.events("down"))
        scenario.wait("it stands by", lambda: len(zombie.events("up")) > 1)
        scenario.record("stands_by", process=zombie.name)
    scenario.wait_until_settled()
    return judge(scenario.connection, Leadership(first, second, since, session.transaction), shop.committed)


def judge(connection: Connection, leadership: Leadership, confirmed: Sequence[int] = ()) -> Verdict:
    """Judge the drill by the tables."""
    leader, since = first_row(connection, _LEADER) or (None, None)
    returned = value(connection, _RETURNED, leadership.second_since)
    became = sessions.status(connection, leadership.transaction)
    return Verdict(
        happened="the leader was stopped in a batch, the standby led, and the first came back",
        race=[
            Evidence(
                "drain_state: both have led",
                f"{leadership.first}, then {leadership.second}",
                holds=leadership.first != leadership.second,
            ),
            Evidence(
                "pg_stat_activity: the first had begun a batch and not committed",
                f"transaction {leadership.transaction} was open",
                holds=bool(leadership.transaction),
            ),
            Evidence(
                "pg_stat_activity: the first came back, in a session that is younger than its successor's leadership",
                f"{returned} came back",
                holds=returned > 0,
            ),
        ],
        survival=[
            Evidence("pg_xact_status: the batch of the first leader", became, holds=became == "aborted"),
            Evidence(
                "drain_state: the second has led without interruption",
                f"{leader} since {since:%H:%M:%S}" if since else "nobody",
                holds=(leader, since) == (leadership.second, leadership.second_since),
            ),
            *invariants.check(connection, confirmed),
        ],
    )


def _stop_within_a_batch(scenario: Scenario, leader: Child) -> Session:
    """Stop the leader when it has moved rows and not committed; returns its session."""
    for _ in range(_TRIALS):
        scenario.place(_AT_ONCE)
        began = scenario.wait("the leader drains", lambda: sessions.draining(scenario.connection), pause=0)
        scenario.pause(leader)
        sleep(_STATEMENT_SECONDS)
        if sessions.draining(scenario.connection) == began:
            scenario.record("moved_not_committed", transaction=began.transaction)
            return began
        scenario.resume(leader)
    raise DidNotHappenError("the leader could not be stopped in the middle of a batch")

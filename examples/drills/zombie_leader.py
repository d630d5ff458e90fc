"""The leader stands still in the middle of a batch, loses its session and its office, and comes back.

It has moved the rows of the batch and not committed. The server ends its session, as it would that of a
machine that has vanished. The standby takes the same rows. Then the first leader goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep

from programs.child import Child

from drain.database.postgres import Connection
from drills import books, sessions
from drills.rows import first_row, value
from drills.scene import DidNotHappenError, Scene
from drills.sessions import Session
from drills.shop import Shop
from drills.verdict import Evidence, Verdict

SUMMARY = "a leader stood still in a batch, and comes back too late"

_AT_ONCE = 400
_TRIALS = 10
# What the server had in hand when its client was stopped ends in this time.
_SETTLE_SECONDS = 0.1
_LEADER = "SELECT leader, leader_since FROM drain_state"
_RETURNED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'drain run' AND backend_start > %s
"""


@dataclass(frozen=True, slots=True)
class Office:
    """Who led and since when, before and after; and the transaction in which the first had moved a batch."""

    first: str
    second: str
    second_since: object
    transaction: str


def run(scene: Scene) -> Verdict:
    """Let it happen, and judge."""
    zombie = scene.leader("enqueuer 1")
    successor = scene.standby("enqueuer 2")
    scene.workers("worker")
    first, _ = scene.wait("there is a leader", lambda: scene.row(_LEADER))
    with Shop(scene.database_url) as shop:
        session = _stop_within_a_batch(scene, zombie)
        sessions.end(scene.connection, session)
        scene.tell("session_ended", process=zombie.name)
        scene.wait("the standby leads", lambda: successor.events("leading"))
        second, since = scene.wait("there is a leader", lambda: scene.row(_LEADER))
        scene.tell("leads", process=successor.name)
        scene.resume(zombie)
        scene.wait("the first leader sees that its session is gone", lambda: zombie.events("down"))
        scene.wait("it stands by", lambda: len(zombie.events("up")) > 1)
        scene.tell("stands_by", process=zombie.name)
    scene.wait_until_all_is_settled()
    return judge(scene.connection, Office(first, second, since, session.transaction), shop.committed)


def judge(connection: Connection, office: Office, told: Sequence[int] = ()) -> Verdict:
    """What the tables say."""
    leader, since = first_row(connection, _LEADER) or (None, None)
    returned = value(connection, _RETURNED, office.second_since)
    became = sessions.status(connection, office.transaction)
    return Verdict(
        happened="the leader stood still in a batch, the standby led, and the first came back",
        race=[
            Evidence(
                "drain_state: both have led",
                f"{office.first}, then {office.second}",
                holds=office.first != office.second,
            ),
            Evidence(
                "pg_stat_activity: the first had begun a batch and not committed",
                f"transaction {office.transaction} was open",
                holds=bool(office.transaction),
            ),
            Evidence(
                "pg_stat_activity: the first came back, in a session that is younger than its successor's office",
                f"{returned} came back",
                holds=returned > 0,
            ),
        ],
        survival=[
            Evidence("pg_xact_status: the batch of the first leader", became, holds=became == "aborted"),
            Evidence(
                "drain_state: the second has led without a break",
                f"{leader} since {since:%H:%M:%S}" if since else "nobody",
                holds=(leader, since) == (office.second, office.second_since),
            ),
            *books.check(connection, told),
        ],
    )


def _stop_within_a_batch(scene: Scene, leader: Child) -> Session:
    """Stop the leader when it has moved rows and not committed; returns its session."""
    for _ in range(_TRIALS):
        scene.place(_AT_ONCE)
        began = scene.wait("the leader drains", lambda: sessions.draining(scene.connection), pause=0)
        scene.pause(leader)
        sleep(_SETTLE_SECONDS)
        if sessions.draining(scene.connection) == began:
            scene.tell("moved_not_committed", transaction=began.transaction)
            return began
        scene.resume(leader)
    raise DidNotHappenError("the leader could not be stopped in the middle of a batch")

"""Drill: the leader is stopped before it pushes a batch, loses its session and the leadership, and comes back.

The leader is stopped while the move of its rows waits for another session's lock on one of them, and the server commits
the move after that: none of them can have been pushed. The server ends the leader's session, as it ends the session of
a machine that has failed. The standby pushes the rows, and their jobs finish. Then the first leader continues in the
middle of its batch, and pushes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from programs.child import Child

from drain.database.postgres import Connection
from drills import invariants, sessions
from drills.rows import first_row, value
from drills.scenario import Scenario
from drills.sessions import Session
from drills.shop import Shop
from drills.verdict import Evidence, Verdict

SUMMARY = "a leader is suspended in a batch, and resumes too late"

# Orders placed for the batch.
_AT_ONCE = 1000
_LEADER = "SELECT leader, leader_since FROM drain_state"
_LOCK = "SELECT FROM staged_jobs WHERE id = %s FOR UPDATE"
# Rows that a transaction has moved, as long as nobody has claimed them.
_MOVED = "SELECT array_agg(id) FROM inflight_jobs WHERE xmin::text = %s"
_UNFINISHED = "SELECT count(*) FROM unnest(%s::bigint[]) AS id WHERE id NOT IN (SELECT id FROM finished_jobs)"
_FINISHED_BEFORE = "SELECT count(*) FROM finished_jobs WHERE id = ANY(%s) AND finished_at < %s"
_RETURNED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'drain run' AND backend_start > %s
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch that the first leader had moved and not pushed: its transaction, and the ids of its jobs."""

    transaction: str
    jobs: Sequence[int]


@dataclass(frozen=True, slots=True)
class Leadership:
    """Leadership of the first and of the second leader, the batch of the first, and when the first went on."""

    first: str
    second: str
    second_since: object
    batch: Batch
    resumed: object


def run(scenario: Scenario) -> Verdict:
    """Bring about the race, and judge its end."""
    zombie = scenario.leader("enqueuer 1")
    successor = scenario.standby("enqueuer 2")
    scenario.workers("worker")
    first, _ = scenario.wait("there is a leader", lambda: scenario.row(_LEADER))
    with Shop(scenario.database_url) as shop:
        session, batch = _stop_within_a_batch(scenario, zombie)
        sessions.end(scenario.connection, session)
        scenario.record("session_ended", process=zombie.name)
        scenario.wait("the standby leads", lambda: successor.events("leading"))
        second, since = scenario.wait("there is a leader", lambda: scenario.row(_LEADER))
        scenario.record("leads", process=successor.name)
        scenario.wait("its batch finishes", lambda: not scenario.value(_UNFINISHED, batch.jobs))
        scenario.record("finished", jobs=len(batch.jobs))
        resumed = scenario.value("SELECT clock_timestamp()")
        scenario.resume(zombie)
        scenario.wait("the first leader sees that its session is gone", lambda: zombie.events("down"))
        scenario.wait("it stands by", lambda: len(zombie.events("up")) > 1)
        scenario.record("stands_by", process=zombie.name)
    scenario.wait_until_settled()
    return judge(scenario.connection, Leadership(first, second, since, batch, resumed), shop.committed)


def judge(connection: Connection, leadership: Leadership, confirmed: Sequence[int] = ()) -> Verdict:
    """Judge the drill by the tables."""
    leader, since = first_row(connection, _LEADER) or (None, None)
    returned = value(connection, _RETURNED, leadership.second_since)
    batch = leadership.batch
    became = sessions.status(connection, batch.transaction)
    finished = value(connection, _FINISHED_BEFORE, list(batch.jobs), leadership.resumed)
    return Verdict(
        happened="the leader was stopped in a batch, the standby led, and the first came back",
        race=[
            Evidence(
                "drain_state: both have led",
                f"{leadership.first}, then {leadership.second}",
                holds=leadership.first != leadership.second,
            ),
            Evidence(
                "pg_xact_status: a batch of the first was committed after the first had been stopped",
                f"transaction {batch.transaction} {became}",
                holds=became == "committed",
            ),
            Evidence(
                "finished_jobs: the jobs of that batch finished before the first went on",
                f"{finished} of {len(batch.jobs)}",
                holds=0 < len(batch.jobs) == finished,
            ),
            Evidence(
                "pg_stat_activity: the first came back, in a session that is younger than its successor's leadership",
                f"{returned} came back",
                holds=returned > 0,
            ),
        ],
        survival=[
            Evidence(
                "drain_state: the second has led without interruption",
                f"{leader} since {since:%H:%M:%S}" if since else "nobody",
                holds=(leader, since) == (leadership.second, leadership.second_since),
            ),
            *invariants.check(connection, confirmed),
        ],
    )


def _stop_within_a_batch(scenario: Scenario, leader: Child) -> tuple[Session, Batch]:
    """Stop the leader when it has moved rows and not pushed them; returns its session and the batch."""
    connection = scenario.connection
    scenario.pause(leader)
    first, *_ = scenario.place(_AT_ONCE)
    with closing(scenario.connect()) as other, other.transaction():
        other.execute(_LOCK, (first.job_id,))
        scenario.resume(leader)
        # Nothing is pushed before the commit of the move, and the move waits for the lock of the row.
        session = scenario.wait("the leader drains", lambda: sessions.held_up(connection))
        scenario.pause(leader)
    # The leader has sent the COMMIT together with the move.
    jobs = scenario.wait("its move is committed", lambda: scenario.value(_MOVED, session.transaction))
    scenario.record("moved_not_pushed", transaction=session.transaction, jobs=len(jobs))
    return session, Batch(session.transaction, jobs)

"""What is said of a waiting job is what the leader does: random rules, pauses and jobs, and a real leader."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from drain.database import postgres
from drain.enqueuer.enqueuer import SESSION
from drain.read.causes import Standing, cause_of, read_standings
from drain.read.explain import explain
from drain.read.waiting_by_cause import CAUSES_OF, count_waiting
from drain.tables import pauses, rules
from drain.tables.pauses import Pauses
from tests.helpers import new_enqueuer, query

QUEUES, KEYS, NAMES = ("a", "b", "c"), (None, "x", "y"), ("m.f", "m.g")
# Each rule, and how often a queue has it.
RULES: Mapping[str, tuple[float, tuple[Any, ...]]] = {
    "running": (0.4, (1, 2, 3, 4)),
    "running_per_key": (0.4, (1,)),
    "rate": (0.4, ("1/d",)),
    "rate_per_key": (0.3, ("1/d",)),
    "burst": (0.3, (1, 2, 3, 4)),
    "ordered": (0.3, (True,)),
    "on_dead": (0.2, ("skip",)),
    "fair": (0.2, (True,)),
}
PAUSES = (
    {"queue": "a"},
    {"job_name": "m.g"},
    {"key": "x"},
    {"queue": "b", "key": "y"},
    {"queue": "c", "job_name": "m.f"},
)
# The end of the lease, the next attempt, the claims and the time of the last one: of a job that is delivered, one that
# runs, and one that waits to be tried again.
STATES = (
    "NULL, NULL, 0, NULL::timestamptz, 0",
    "now() + interval '1 h', NULL, 1, now(), 1",
    "NULL, now() + interval '1 h', 1, now(), 1",
)
_JOB = "SELECT nextval('staged_jobs_id_seq'), 'm.f', '[]', '{}', %s, %s, 0, now(), now()"
_COLUMNS = "id, job_name, job_args, job_kwargs, queue, key, priority, scheduled_at, staged_at"
INFLIGHT = f"""
INSERT INTO inflight_jobs ({_COLUMNS}, moved_at, delivery, claimed_by, lease_expires_at, next_run_at, fencing_token,
    claimed_at, attempts)
{_JOB}, now(), nextval('drain_last_delivery'), 'w',
"""
FINISHED = f"""
INSERT INTO finished_jobs ({_COLUMNS}, moved_at, claimed_at, finished_at, attempts, fencing_token)
{_JOB}, now(), now(), now(), 1, 1
"""
DEAD = f"""
INSERT INTO dead_jobs ({_COLUMNS}, died_at, attempts, fencing_token, reason, explanation)
{_JOB}, now(), 1, 1, %s, 'why'
"""
STAGED = """
INSERT INTO staged_jobs (queue, key, job_name, staged_at, scheduled_at)
VALUES (%s, %s, %s, now() - interval '1 min', now() - interval '1 min')
"""


class World:
    """Tables with random contents."""

    def __init__(self, database_url: str, seed: int) -> None:
        self._url = database_url
        self._chance = random.Random(seed)
        chance = self._chance
        for queue in QUEUES:
            given = {
                name: chance.choice(values)
                for name, (often, values) in RULES.items()
                if chance.random() < often
            }
            self._insert("queues", {"queue": queue, **given})
        for pause in chance.sample(PAUSES, chance.choice((0, 0, 1, 2))):
            self._insert("queue_pauses", pause)
        for _ in range(chance.randint(0, 6)):
            self._put(INFLIGHT + chance.choice(STATES))
        query(database_url, "SELECT setval('drain_pushed_up_to', last_value) FROM drain_last_delivery")
        for _ in range(chance.randint(0, 3)):
            self._put(DEAD, chance.choice(("failed", "cancelled")))
        for _ in range(chance.randint(0, 4)):
            self._put(FINISHED)
        for _ in range(chance.randint(3, 12)):
            self._put(STAGED, chance.choice(NAMES))

    def _insert(self, table: str, columns: Mapping[str, Any]) -> None:
        marks = ", ".join(["%s"] * len(columns))
        # Rules that contradict each other leave their queue without any.
        with suppress(psycopg.errors.CheckViolation):
            query(
                self._url, f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", *columns.values()
            )

    def _put(self, statement: str, *more: Any) -> None:
        query(self._url, statement, self._chance.choice(QUEUES), self._chance.choice(KEYS), *more)


def told(connection: postgres.Connection) -> dict[int, str]:
    """The cause for which each staged job waits, as `drain status` counts it."""
    staged = connection.execute("SELECT id, queue, job_name, key FROM staged_jobs ORDER BY id").fetchall()
    ruled, paused = rules.read(connection), Pauses(pauses.read(connection))
    standings = read_standings(connection, list(ruled.values()), paused)
    firsts: set[tuple[str, str]] = set()
    found = {}
    for job_id, queue, name, key in staged:
        of_queue, standing = ruled.get(queue), standings.get(queue, Standing())
        cause = cause_of(of_queue, standing, paused, (queue, name, key))
        if of_queue is not None and of_queue.ordered and key is not None and cause != "paused":
            # One job of a key at a time: the others wait for the first.
            cause = "limited" if (queue, key) in firsts else cause
            firsts.add((queue, key))
        found[job_id] = "free" if cause in ("due", "list_full") else cause
    counted: Counter[tuple[str, str]] = Counter()
    for queue, causes in count_waiting(connection, 1000).items():
        for cause in CAUSES_OF["ready"]:
            counted[queue, "free" if cause in ("due", "list_full") else cause] += causes.get(cause, 0)
    assert +counted == Counter((queue, found[job_id]) for job_id, queue, *_ in staged)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_the_leader_treats_each_job_as_the_status_reports(
    database_url: str, redis_url: str, seed: int
) -> None:
    World(database_url, seed)
    with (
        closing(postgres.connect(database_url, "tests")) as connection,
        new_enqueuer(database_url, redis_url, depth=0) as enqueuer,
    ):
        connection.execute("; ".join(SESSION).encode())
        before = told(connection)
        for _ in range(10):
            enqueuer.look()
            enqueuer.drain()
        after = told(connection)
        explained = {job_id: explain(connection, None, job_id).finding.cause for job_id in after}
    # What is held stays, and what is free goes; of that which stays each is held by now.
    assert {
        job_id: cause for job_id, cause in before.items() if cause != "free" and job_id not in after
    } == {}
    assert {job_id: cause for job_id, cause in after.items() if cause == "free"} == {}
    assert {job_id: cause for job_id, cause in explained.items() if cause == "next"} == {}

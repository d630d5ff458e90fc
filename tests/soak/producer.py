"""An application: stages jobs in transactions, and rolls some of them back.

    python -m tests.soak.producer SEED JOURNAL

Writes the ids of the jobs of each commit that it was told of into the journal, one line a commit. That is a
witness besides the database, which must not forget what it has confirmed.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from time import sleep, time
from typing import Any, TextIO
from uuid import uuid4

import psycopg

from drain import emit, stage
from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from tests.soak import tables
from tests.soak.jobs import KINDS, name_of_event, options

# Rules of the first three come and go; those of the others stay.
QUEUES = ("mail", "index", "bulk", "calls", "ordered")
_CHOSEN = (3, 3, 3, 1.5, 1)
KEYS = ("acme", "globex", "initech", "umbrella")

_AWAY_SECONDS = 0.1
_LONG_SECONDS = 3.0
# With more jobs than this under way, one whose lease ran out waits behind them for so long that its first
# worker is back before another one can take it over.
_UNDER_WAY = 100
# Share of the jobs with a unique key.
_UNIQUE = 0.2
# Shares of the jobs with a key, with the key that is paused, and with an idempotency key.
_KEYED, _HELD, _ONCE = 0.6, 0.005, 0.05
# How long an idempotency key is used, and how many there are at a time.
_ONCE_SECONDS, _ONCE_KEYS = 5, 4
_COUNT = f"""
SELECT count(*) FROM (
    SELECT FROM inflight_jobs UNION ALL SELECT FROM staged_jobs WHERE key IS DISTINCT FROM '{tables.HELD}'
    LIMIT %s) AS jobs
"""
# Jobs to wait for. Most have not ended.
_LATEST = "SELECT job_id FROM wanted ORDER BY job_id DESC LIMIT 20"
_WEIGHTS = [weight for _, weight in KINDS.values()]


def main(seed: str, journal: Path) -> None:
    """Stage until the process is ended."""
    chance = random.Random(seed)
    with journal.open("a", buffering=1) as told:
        while True:
            try:
                with closing(postgres.connect(os.environ["DRAIN_DATABASE_URL"], "producer")) as connection:
                    while True:
                        with tables.passing(connection):
                            _transact(connection, chance, told)
                        sleep(_crowd_seconds(connection))
            except (psycopg.OperationalError, UnavailableError):
                sleep(_AWAY_SECONDS)


def _transact(connection: Connection, chance: random.Random, told: TextIO) -> None:
    rolls_back = chance.random() < 0.15
    # Before or after the jobs that wait for them.
    events = [name_of_event(chance) for _ in range(2)]
    with connection.transaction(force_rollback=rolls_back):
        ids = [_stage_one(connection, chance) for _ in range(chance.randint(1, 4))]
        if chance.random() < 0.03:
            _schedule(connection, chance)
        for event in events:
            emit(connection, event, event)
        if chance.random() < 0.03:
            # Ids that were given out later are committed, drained and finished meanwhile.
            sleep(chance.uniform(0, _LONG_SECONDS))
    if not rolls_back:
        told.write(" ".join(map(str, ids)) + "\n")


def _schedule(connection: Connection, chance: random.Random) -> None:
    """Write a schedule with one tick, which has just come or is about to."""
    connection.execute(tables.SCHEDULE, (uuid4().hex, chance.uniform(-1, 3)))


def _crowd_seconds(connection: Connection) -> float:
    """How long to pause, by how many jobs are under way and by the load."""
    (count,) = postgres.fetch_one(connection, _COUNT, (_UNDER_WAY,))
    return (0.02 + 0.5 * int(count) / _UNDER_WAY) / float(os.environ["SOAK_LOAD"])


def _stage_one(connection: Connection, chance: random.Random) -> int:
    if chance.random() < _ONCE:
        return _stage_once(connection, chance)
    (kind,) = chance.choices(list(KINDS), _WEIGHTS)
    registered, _ = KINDS[kind]
    job_id = stage(
        connection,
        registered,
        queue=chance.choices(QUEUES, _CHOSEN)[0],
        key=_key(chance),
        priority=chance.choice([0, 0, 0, -5, 5]),
        run_at=tables.time_in(connection, chance.uniform(0, 5)) if chance.random() < 0.1 else None,
        **options(kind, chance),
        **_unique(kind, chance),
        **(_after(connection, chance) if kind == "follow" else {}),
    )
    connection.execute(tables.WANT, (job_id, kind))
    return job_id


def _stage_once(connection: Connection, chance: random.Random) -> int:
    """Stage a job that another transaction, of either producer, may have staged under the same idempotency key."""
    key = f"{int(time()) // _ONCE_SECONDS}-{chance.randrange(_ONCE_KEYS)}"
    job_id = stage(connection, KINDS["settle"][0], queue=chance.choice(QUEUES), idempotency_key=key)
    connection.execute(tables.WANT, (job_id, "settle"))
    connection.execute(tables.STAGED_ONCE, (key, job_id))
    return job_id


def _after(connection: Connection, chance: random.Random) -> dict[str, Any]:
    """Options of a job that waits for up to three of the latest ones, also of this transaction."""
    latest = [job_id for (job_id,) in connection.execute(_LATEST)]
    after = chance.sample(latest, min(len(latest), chance.randint(1, 3)))
    return {"after": after, "on_failure": chance.choice(["cancel", "run", "run"])} if after else {}


def _key(chance: random.Random) -> str | None:
    number = chance.random()
    if number < _HELD:
        return tables.HELD
    return chance.choice(KEYS) if number < _KEYED else None


def _unique(kind: str, chance: random.Random) -> dict[str, Any]:
    """Options of some jobs: they wait under a unique key, of which there are few."""
    if chance.random() > _UNIQUE:
        return {}
    keep = chance.choice(["first", "last"])
    quiet = timedelta(seconds=chance.uniform(0.1, 1)) if chance.random() < 0.3 else None
    return {"unique_key": f"{kind} {chance.randint(1, 3)}", "keep": keep, "quiet": quiet}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any, TextIO

import psycopg

from drain import stage
from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from tests.soak import tables
from tests.soak.jobs import KINDS, options

QUEUES = ("mail", "index", "bulk")

_AWAY_SECONDS = 0.1
_LONG_SECONDS = 3.0
# With more jobs than this under way, one whose lease ran out waits behind them for so long that its first
# worker is back before another one can take it over.
_UNDER_WAY = 100
# Share of the jobs with a unique key.
_UNIQUE = 0.2
_COUNT = "SELECT count(*) FROM (SELECT FROM inflight_jobs LIMIT %s) AS jobs"
_WEIGHTS = [weight for _, weight in KINDS.values()]


def main(seed: int, journal: Path) -> None:
    """Stage until somebody ends it."""
    chance = random.Random(seed)
    with journal.open("a", buffering=1) as told:
        while True:
            try:
                with closing(postgres.connect(os.environ["DRAIN_DATABASE_URL"], "producer")) as connection:
                    while True:
                        _transact(connection, chance, told)
                        sleep(_crowd_seconds(connection))
            except (psycopg.OperationalError, UnavailableError):
                sleep(_AWAY_SECONDS)


def _transact(connection: Connection, chance: random.Random, told: TextIO) -> None:
    rolls_back = chance.random() < 0.15
    with connection.transaction(force_rollback=rolls_back):
        ids = [_stage_one(connection, chance) for _ in range(chance.randint(1, 4))]
        if chance.random() < 0.03:
            _schedule(connection, chance)
        if chance.random() < 0.03:
            # Ids that were given out later are committed, drained and finished meanwhile.
            sleep(chance.uniform(0, _LONG_SECONDS))
    if not rolls_back:
        told.write(" ".join(map(str, ids)) + "\n")


def _schedule(connection: Connection, chance: random.Random) -> None:
    """Write a schedule with one tick, which has just come or is about to."""
    connection.execute(tables.SCHEDULE, (f"{chance.getrandbits(64):x}", chance.uniform(-1, 3)))


def _crowd_seconds(connection: Connection) -> float:
    """How long to pause, by how many jobs are under way."""
    (count,) = postgres.fetch_one(connection, _COUNT, (_UNDER_WAY,))
    return 0.02 + 0.5 * int(count) / _UNDER_WAY


def _stage_one(connection: Connection, chance: random.Random) -> int:
    (kind,) = chance.choices(list(KINDS), _WEIGHTS)
    registered, _ = KINDS[kind]
    now = datetime.now(UTC)
    job_id = stage(
        connection,
        registered,
        queue=chance.choice(QUEUES),
        priority=chance.choice([0, 0, 0, -5, 5]),
        run_at=now + timedelta(seconds=chance.uniform(0, 5)) if chance.random() < 0.1 else None,
        **options(kind, chance),
        **_unique(kind, chance),
    )
    connection.execute(tables.WANT, (job_id, kind))
    return job_id


def _unique(kind: str, chance: random.Random) -> dict[str, Any]:
    """Options of some jobs: they wait under a unique key, of which there are few."""
    if chance.random() > _UNIQUE:
        return {}
    keep = chance.choice(["first", "last"])
    quiet = timedelta(seconds=chance.uniform(0.1, 1)) if chance.random() < 0.3 else None
    return {"unique_key": f"{kind} {chance.randint(1, 3)}", "keep": keep, "quiet": quiet}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

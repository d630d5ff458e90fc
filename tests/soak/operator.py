"""An operator: changes rules, pauses and resumes, cancels, moves and revives jobs, while everything runs.

python -m tests.soak.operator SEED
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from time import sleep

import psycopg

from drain import cancel, queues
from drain.admission.rules import Rate, Rules
from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.tables import changes, dead
from drain.tables.changes import Change
from drain.tables.selections import Selection
from tests.soak import tables
from tests.soak.producer import KEYS, QUEUES

_AWAY_SECONDS = 0.1
_PAUSE_SECONDS = (0.1, 1.2)
# The queues whose rules come and go.
CHANGING = QUEUES[:3]
_RULES: tuple[Callable[[str], Rules], ...] = (
    Rules,
    lambda queue: Rules(queue, running=4),
    lambda queue: Rules(queue, running=8, running_per_key=3, fair=True, weights={"acme": 3}),
    lambda queue: Rules(queue, rate=Rate(30, 1), burst=10),
    lambda queue: Rules(queue, rate_per_key=Rate(10, 1)),
    lambda queue: Rules(queue, ordered=True, on_dead="skip"),
    lambda queue: Rules(queue, aging_seconds=1.0),
)
_CANCEL = "INSERT INTO cancelled (job_id) SELECT unnest(%s::bigint[]) ON CONFLICT DO NOTHING"
# A cancel stages the latest request again that gave way to the cancelled job: its unique key begins with its kind.
_WANT_REQUESTS = r"""
INSERT INTO wanted (job_id, kind)
SELECT id, regexp_replace(unique_key, ' \d+$', '') FROM staged_jobs WHERE staged_at = now()
"""
_REVIVE = """
DELETE FROM cancelled WHERE job_id IN (
    SELECT job_id FROM cancelled JOIN wanted USING (job_id) ORDER BY random() LIMIT 3)
RETURNING job_id
"""
# Some of the latest jobs; most have ended by then.
_LATEST = "SELECT job_id FROM wanted ORDER BY job_id DESC LIMIT %s"


def main(seed: int) -> None:
    """Do one thing after the other until somebody ends it."""
    chance = random.Random(seed)
    while True:
        try:
            with closing(postgres.connect(os.environ["DRAIN_DATABASE_URL"], "operator")) as connection:
                while True:
                    (act,) = chance.choices(list(_ACTS), list(_ACTS.values()))
                    with tables.passing(connection):
                        act(connection, chance)
                    sleep(chance.uniform(*_PAUSE_SECONDS))
        except (psycopg.OperationalError, UnavailableError):
            sleep(_AWAY_SECONDS)


def _set_rules(connection: Connection, chance: random.Random) -> None:
    with connection.transaction():
        queues.replace(connection, chance.choice(_RULES)(chance.choice(CHANGING)))


def _pause(connection: Connection, chance: random.Random) -> None:
    queue, key = chance.choice(QUEUES), chance.choice(KEYS)
    names = [(queue, None, None), (None, None, key), (None, "soak.settle", None), (queue, None, key)]
    queue_, job, key_ = chance.choice(names)
    until = timedelta(seconds=chance.uniform(0.2, 4)) if chance.random() < 0.7 else None
    queues.pause(connection, queue_, job=job, key=key_, until=until)


def _resume(connection: Connection, _chance: random.Random) -> None:
    for pause in queues.pauses(connection):
        if pause.key in (None, *KEYS):
            queues.resume(connection, pause.queue, job=pause.job_name, key=pause.key)


def _cancel(connection: Connection, chance: random.Random) -> None:
    """Cancel some jobs, and roll some of that back."""
    with connection.transaction(force_rollback=chance.random() < 0.2):
        if chance.random() < 0.8:
            cancelled = cancel(connection, _some(connection, chance))
        else:
            cancelled = cancel(connection, queue=chance.choice(QUEUES), key=chance.choice(KEYS))
        connection.execute(_CANCEL, [[*cancelled.waiting, *cancelled.running]])
        connection.execute(_WANT_REQUESTS)
        sleep(chance.choice([0, 0, 0.2]))


def _revive(connection: Connection, _chance: random.Random) -> None:
    with connection.transaction():
        ids = tuple(job_id for (job_id,) in connection.execute(_REVIVE))
        if ids:
            dead.revive(connection, dead.Selection(ids))


def _move(connection: Connection, chance: random.Random) -> None:
    """As `drain jobs move` does, in two transactions."""
    change = chance.choice(
        [
            Change(queue=chance.choice(QUEUES)),
            Change(priority=chance.choice([-5, 5])),
            Change(run_at=tables.time_in(connection, chance.uniform(-1, 2))),
        ]
    )
    if chance.random() < 0.5:
        selection = Selection(ids=tuple(_some(connection, chance)))
    else:
        selection = Selection(queue=chance.choice(QUEUES), key=chance.choice(KEYS))
    try:
        changes.change_staged(connection, selection, change)
        if change.reaches_deliveries:
            changes.change_inflight(connection, selection, change)
    except psycopg.errors.SerializationFailure:
        # A row has just come due: the command would repeat it.
        return


def _some(connection: Connection, chance: random.Random) -> list[int]:
    latest = [job_id for (job_id,) in connection.execute(_LATEST, (40,))] or [1]
    return chance.sample(latest, min(len(latest), chance.randint(1, 10)))


_ACTS = {_set_rules: 4, _pause: 3, _resume: 3, _cancel: 2, _revive: 1, _move: 3}


if __name__ == "__main__":
    main(int(sys.argv[1]))

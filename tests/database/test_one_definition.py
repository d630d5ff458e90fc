"""Numbers of jobs in flight: `drain status`, `drain top`, the page and `drain show` say the same, leader or not."""

from collections import Counter

from drain.database import postgres
from drain.read import queries, system
from tests.helpers import query, stage_jobs

NUMBERS = {"running": 3, "queued": 5, "retrying": 2}
# Changes of rows in flight: three run, the workers of two have died, and two wait for their next attempt.
STATES = (
    (
        3,
        "claimed_at = now(), claimed_by = 'a', fencing_token = 1, lease_expires_at = now() + interval '1 min'",
    ),
    (
        2,
        "claimed_at = now(), claimed_by = 'b', fencing_token = 1, lease_expires_at = now() - interval '1 min'",
    ),
    (2, "next_run_at = now() - interval '1 s'"),
    (3, "moved_at = now()"),
)


def test_all_that_count_agree_on_what_runs_waits_and_is_retried(database_url: str) -> None:
    ids = stage_jobs(database_url, sum(NUMBERS.values()), queue="mail")
    query(
        database_url,
        "WITH moved AS (DELETE FROM staged_jobs RETURNING *) INSERT INTO inflight_jobs (id, job_name, job_args, "
        "job_kwargs, queue, priority, scheduled_at, staged_at, delivery) SELECT id, job_name, job_args, job_kwargs, "
        "queue, priority, scheduled_at, staged_at, id FROM moved",
    )
    first = 0
    for number, state in STATES:
        query(
            database_url, f"UPDATE inflight_jobs SET {state} WHERE id = ANY (%s)", ids[first : first + number]
        )
        first += number
    with postgres.connect(database_url, "tests") as connection:
        found = system.read(connection)
        now = queries.now(connection)
        states = Counter(queries.inflight_state(queries.job(connection, each), now) for each in ids)

    mail = found.queues["mail"]
    assert {name: found.total(name) for name in NUMBERS} == NUMBERS
    assert {name: getattr(mail, name) for name in NUMBERS} == NUMBERS
    assert (mail.waiting, mail.estimates) == ({"queued": 5, "retrying": 2}, set())
    assert states == {"running": 3, "stalled": 2, "queued": 3, "deferred": 2}

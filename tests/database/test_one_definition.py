"""Numbers of jobs: `drain status`, `top`, `list` and the metrics say the same, with a leader or without."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import REGISTRY

from drain.__main__ import main
from drain.database import postgres
from drain.enqueuer.leader import try_to_lead
from drain.enqueuer.waiting_jobs import WaitingJobs
from drain.read import queries, states, system
from tests.helpers import query, stage_jobs

NUMBERS = {"ready": 4, "scheduled": 2, "running": 3, "queued": 5, "retrying": 2, "parked": 2, "dead": 1}
WAITING = {"scheduled": 2, "list_full": 3, "due": 1, "queued": 5, "retrying": 2, "parked": 2}
METRIC = "drain_waiting_jobs"
# Changes of rows in flight: three run, the workers of two have died, two wait for their next attempt, two
# for events.
STATES = (
    (
        3,
        "claimed_at = now(), claimed_by = 'a', fencing_token = 1, lease_expires_at = now() + interval '1 min'",
    ),
    (
        2,
        "claimed_at = now(), claimed_by = 'b', fencing_token = 1, lease_expires_at = now() - interval '1 min'",
    ),
    (2, "next_run_at = now() + interval '1 hour'"),
    (2, "next_run_at = '9999-12-29Z'"),
    (3, "moved_at = now()"),
)


def put_a_job_of_each_kind(database_url: str) -> list[int]:
    """Put jobs in all states into the queue `mail`; returns the ids of those in flight."""
    ids = stage_jobs(database_url, 12, queue="mail")
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
    stage_jobs(database_url, 3, queue="mail")
    coming_due, *_ = stage_jobs(database_url, 3, queue="mail", run_at=datetime.now(UTC) + timedelta(hours=1))
    # Its time has come, and no leader has seen it.
    query(
        database_url,
        "UPDATE staged_jobs SET scheduled_at = staged_at + interval '1 us' WHERE id = %s",
        coming_due,
    )
    query(
        database_url,
        "INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, reason, "
        "explanation) VALUES (0, 'm.f', '[]', '{}', 'mail', 0, now(), now(), 'failed', '')",
    )
    return ids


@pytest.mark.parametrize("pages", [states.PAGES, 0], ids=["whole tables", "parts of tables"])
@pytest.mark.parametrize("is_led", [True, False], ids=["leader", "no leader"])
def test_all_counters_agree_on_running_waiting_and_retrying_jobs(
    database_url: str, monkeypatch: pytest.MonkeyPatch, pages: int, is_led: bool
) -> None:
    monkeypatch.setattr(states, "PAGES", pages)
    ids = put_a_job_of_each_kind(database_url)
    with postgres.connect(database_url, "tests") as connection:
        if is_led:
            assert try_to_lead(connection) is not None
        found = system.read(connection)
        now = queries.now(connection)
        of_each = Counter(queries.inflight_state(queries.job(connection, each), now) for each in ids)
        WaitingJobs().run_once(connection, ["mail"])
        lists = {
            state: len(queries.jobs(connection, state, limit=100, queue="mail"))
            for state in ("staged", "inflight", "dead")
        }
    mail = found.queues["mail"]
    assert {name: found.total(name) for name in NUMBERS} == NUMBERS
    assert {name: getattr(mail, name) for name in NUMBERS} == NUMBERS
    assert (mail.waiting, mail.estimates) == (WAITING, set())
    assert {
        cause: REGISTRY.get_sample_value(METRIC, {"queue": "mail", "cause": cause}) for cause in WAITING
    } == WAITING
    assert lists == {"staged": mail.staged, "inflight": mail.inflight, "dead": mail.dead}
    assert of_each == {"running": 3, "stalled": 2, "queued": 3, "deferred": 2, "parked": 2}
    answered = query(database_url, "SELECT state FROM inflight_jobs AS job, drain_job_state(job.id)")
    assert Counter(state for (state,) in answered) == {
        "running": 5,
        "waiting": 3,
        "scheduled": 2,
        "parked": 2,
    }

    env = {"DRAIN_DATABASE_URL": database_url}
    status: dict[str, Any] = json.loads(CliRunner().invoke(main, ["status", "--json"], env=env).stdout)
    of_mail = status["queues"]["mail"]
    both = ("scheduled", "running", "queued", "retrying", "parked", "dead")
    assert {name: of_mail[name] for name in both} == {name: NUMBERS[name] for name in both}
    assert (of_mail["staged"], of_mail["waiting"], of_mail["estimates"]) == (mail.staged, WAITING, [])
    top = CliRunner().invoke(main, ["top"], env=env).stdout
    (row,) = [line for line in top.splitlines() if line.startswith("mail")]
    assert row.split()[-6:] == [str(mail.waits), *row.split()[-5:-4], str(mail.running), "?", "0", "1"]

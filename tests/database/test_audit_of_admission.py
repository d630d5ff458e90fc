"""The audit knows of pauses, limits, unique keys and ticks: what they explain is no breach, and what breaks them is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from drain.read import causes
from tests.process.test_audit import System, overdue_retry, overdue_staged

LONG_AGO = "now() - interval '2 hours'"


@pytest.fixture
def system(database_url: str, redis_url: str) -> System:
    """Nothing at all."""
    return System(database_url, redis_url)


@contextmanager
def led(system: System) -> Iterator[None]:
    """A leader since long ago, that does nothing."""
    with system.enqueue():
        system.execute(f"UPDATE drain_state SET leader_since = {LONG_AGO}")
        yield


def checks(system: System) -> list[str]:
    return [breach.check for breach in system.audit().breaches]


def rules(system: System, columns: str, values: str, changed_at: str = LONG_AGO) -> None:
    system.execute(
        f"INSERT INTO queues (queue, changed_at, {columns}) VALUES ('default', {changed_at}, {values})"
    )


def pause(system: System, columns: str = "queue", values: str = "'default'") -> None:
    system.execute(f"INSERT INTO queue_pauses (paused_at, {columns}) VALUES ({LONG_AGO}, {values})")


def running(system: System, count: int = 1, key: str | None = None, **columns: Any) -> list[int]:
    """Insert jobs that run, with numbers of deliveries that were handed out."""
    given = {"key": key, **columns}
    statement = (
        "INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "delivery, claimed_at, claimed_by, lease_expires_at, fencing_token, attempts, "
        f"{', '.join(given)}) SELECT nextval('staged_jobs_id_seq'), 'm.f', '[]', '{{}}', 'default', 0, now(), now(), "
        "-nextval('drain_last_delivery'), now(), 'w', now() + interval '1 hour', 1, 1, "
        f"{', '.join(['%s'] * len(given))} FROM generate_series(1, {count}) RETURNING id"
    )
    return [id_ for (id_,) in system.execute(statement, *given.values())]


# --- what explains that a job waits


@pytest.mark.parametrize(
    ("columns", "values"), [("queue", "'default'"), ("job_name", "'m.f'"), ("key", "'acme'")]
)
def test_jobs_that_a_pause_holds_are_not_overdue(system: System, columns: str, values: str) -> None:
    overdue_retry(system)
    overdue_staged(system)
    system.execute("UPDATE staged_jobs SET key = 'acme'")
    system.execute("UPDATE inflight_jobs SET key = 'acme'")
    assert checks(system) == ["overdue", "overdue"]

    pause(system, columns, "'another'")
    assert checks(system) == ["overdue", "overdue"]
    pause(system, columns, values)

    assert checks(system) == []


def test_jobs_behind_a_paused_one_of_an_ordered_key_are_not_overdue(system: System) -> None:
    rules(system, "ordered", "true")
    paused, _ = overdue_staged(system), overdue_staged(system)
    system.execute("UPDATE staged_jobs SET key = 'acme', staged_at = scheduled_at")
    system.execute("UPDATE staged_jobs SET job_name = 'm.g' WHERE id = %s", paused)
    pause(system, "job_name", "'m.g'")

    with led(system):
        assert checks(system) == []
        system.execute("UPDATE staged_jobs SET key = 'other' WHERE id = %s", paused)
        assert checks(system) == ["overdue"]


def test_jobs_behind_many_paused_ones_are_not_overdue(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "MOST", 1)
    rules(system, "ordered", "true")
    for key in ("a", "b", "c"):
        paused, behind = overdue_staged(system), overdue_staged(system)
        system.execute("UPDATE staged_jobs SET key = %s WHERE id IN (%s, %s)", key, paused, behind)
        system.execute("UPDATE staged_jobs SET job_name = 'm.g' WHERE id = %s", paused)
    system.execute("UPDATE staged_jobs SET staged_at = scheduled_at")
    pause(system, "job_name", "'m.g'")
    with led(system):
        assert checks(system) == []


def test_jobs_held_by_a_limit_or_full_list_are_not_overdue(
    system: System,
) -> None:
    rules(system, "running", "1")
    running(system, moved_at="2020-01-01")
    overdue_staged(system)
    assert checks(system) == ["overdue"]

    with led(system):
        assert checks(system) == []
        system.execute("UPDATE queues SET running = 2")
        assert checks(system) == ["overdue"]
        system.execute("UPDATE queues SET running_per_key = 1")
        system.execute("UPDATE inflight_jobs SET key = 'acme'")
        system.execute("UPDATE staged_jobs SET key = 'acme'")
        assert checks(system) == []
        system.execute("DELETE FROM queues")
        assert checks(system) == ["overdue"]

    system.execute("DELETE FROM staged_jobs")
    system.drained()
    overdue_staged(system)
    with led(system):
        assert checks(system) == []


def test_jobs_that_wait_for_others_of_their_unique_key_are_not_overdue(system: System) -> None:
    job_id = overdue_staged(system)
    system.execute("UPDATE staged_jobs SET unique_key = 'doc:42', quiet_seconds = 600")
    assert checks(system) == ["overdue"]

    system.execute(
        "INSERT INTO staged_jobs (job_name, unique_key, quiet_seconds) VALUES ('m.f', 'doc:42', 3600)"
    )
    assert checks(system) == []
    system.execute("UPDATE staged_jobs SET quiet_seconds = 1, staged_at = now() - interval '2 hours'")
    assert job_id in system.audit().breaches[0].ids


# --- limits


def test_more_running_jobs_than_a_limit_are_a_breach(system: System) -> None:
    rules(system, "running", "2")
    running(system, 2)
    assert checks(system) == []

    ids = running(system)

    (breach,) = system.audit().breaches
    assert (breach.check, breach.count) == ("limits", 3)
    assert "queue default, limit 2" in breach.explanation
    assert set(ids) <= set(breach.ids)


@pytest.mark.parametrize("rule", [("running_per_key", "1"), ("ordered", "true")])
def test_more_running_jobs_of_a_key_than_its_limit_are_a_breach(
    system: System, rule: tuple[str, str]
) -> None:
    rules(system, *rule)
    for key in ("acme", "other", None, None):
        running(system, key=key)
    assert checks(system) == []

    running(system, key="acme")

    (breach,) = system.audit().breaches
    assert (breach.check, breach.count) == ("limits", 2)
    assert "with key acme, limit 1" in breach.explanation


def test_jobs_that_ran_before_a_limit_was_lowered_may_go_on(system: System) -> None:
    running(system, 3)

    rules(system, "running", "1", changed_at="now()")

    assert checks(system) == []


def test_a_retry_that_was_admitted_beyond_a_limit_is_a_breach(system: System) -> None:
    running(system, 3, moved_at="2020-01-01")
    rules(system, "running", "1", changed_at="now() - interval '1 hour'")
    assert checks(system) == []

    retried = "UPDATE inflight_jobs SET failed_at = now() WHERE id = (SELECT max(id) FROM inflight_jobs)"
    system.execute(retried)

    assert checks(system) == ["limits"]


def test_waiting_retries_do_not_count_towards_a_limit(system: System) -> None:
    rules(system, "running", "1")
    running(system, 2)
    assert checks(system) == ["limits"]

    system.execute(
        "UPDATE inflight_jobs SET lease_expires_at = NULL, next_run_at = now() + interval '1 hour'"
    )

    assert checks(system) == []


# --- pauses


@pytest.mark.parametrize(
    ("columns", "values", "another"),
    [
        ("queue", "'default'", "queue = 'mail'"),
        ("job_name", "'m.f'", "job_name = 'm.g'"),
        ("key", "'acme'", "key = 'other'"),
        ("queue, key", "'default', 'acme'", "queue = 'mail'"),
        ("job_name, key", "'m.f', 'acme'", "key = 'other'"),
    ],
)
def test_claims_of_paused_jobs_are_a_breach(system: System, columns: str, values: str, another: str) -> None:
    (claimed,) = running(system, key="acme")
    finished = system.finished()
    system.execute("UPDATE finished_jobs SET key = 'acme'")
    pause(system, columns, values)
    assert checks(system) == []

    with led(system):
        found = {breach.ids for breach in system.audit().breaches if breach.check == "paused"}
        assert found == {(claimed,), (finished,)}
        system.execute("UPDATE queue_pauses SET until = now() + interval '1 hour'")
        assert checks(system) == []
        system.execute(f"UPDATE queue_pauses SET until = NULL, {another}")
        assert checks(system) == []


def test_claims_older_than_the_pause_or_leader_are_not_a_breach(system: System) -> None:
    running(system)
    pause(system)
    with system.enqueue():
        assert checks(system) == []
        system.execute(f"UPDATE drain_state SET leader_since = {LONG_AGO}")
        system.execute("UPDATE queue_pauses SET paused_at = now()")
        assert checks(system) == []


# --- unique keys, superseded jobs and ticks


def test_two_staged_jobs_of_one_unique_key_under_a_leader_are_a_breach(system: System) -> None:
    system.execute(
        "INSERT INTO staged_jobs (job_name, unique_key, staged_at, scheduled_at) SELECT 'm.f', 'doc:42', "
        "now() - interval '20 seconds', now() - interval '20 seconds' FROM generate_series(1, 2)"
    )
    assert checks(system) == []

    with led(system):
        (breach,) = system.audit().breaches
        assert (breach.check, breach.count) == ("unique", 2)
        pause(system)
        assert checks(system) == []
        system.execute("DELETE FROM queue_pauses")
        system.execute("UPDATE staged_jobs SET staged_at = now(), scheduled_at = now()")
        assert checks(system) == []


def test_two_delivered_jobs_of_one_unique_key_are_a_breach(system: System) -> None:
    one, other = running(system, 2, unique_key="doc:42", moved_at="2020-01-01")
    with led(system):
        assert checks(system) == []
        system.execute(f"UPDATE inflight_jobs SET lease_expires_at = NULL WHERE id = {one}")
        assert "unique" not in checks(system)

        later = "lease_expires_at = NULL, next_run_at = now() + interval '1 hour'"
        system.execute(f"UPDATE inflight_jobs SET {later} WHERE id = {other}")

        assert "unique" in checks(system)
        system.execute("UPDATE inflight_jobs SET moved_at = now()")
        assert "unique" not in checks(system)


def test_a_superseded_job_has_no_attempt_and_no_token(system: System) -> None:
    system.finished()
    system.execute("UPDATE finished_jobs SET attempts = 0, fencing_token = 0")
    assert checks(system) == ["claimed", "claimed"]

    (stands,) = running(system)
    system.execute(f"UPDATE finished_jobs SET superseded_by = {stands}")
    assert checks(system) == []
    system.execute(f"UPDATE finished_jobs SET superseded_by = {stands} + 1")
    assert checks(system) == ["once"]


def test_a_schedule_whose_tick_is_late_is_a_breach(system: System) -> None:
    system.execute(
        "INSERT INTO crons (name, job_name, cron, next_tick_at) VALUES ('nightly', 'm.f', '0 3 * * *', now())"
    )
    assert checks(system) == []

    system.execute(f"UPDATE crons SET next_tick_at = {LONG_AGO}")
    # Without a leader none is late, and a new one has as long as a tick may be late.
    assert checks(system) == []
    with system.enqueue():
        assert checks(system) == []

    with led(system):
        (breach,) = system.audit().breaches
        assert (breach.check, breach.count) == ("ticks", 1)
        assert "nightly" in breach.explanation
        system.execute("UPDATE crons SET paused = true")
        assert checks(system) == []


def test_a_schedule_whose_job_cannot_be_staged_is_a_breach(system: System) -> None:
    system.execute(
        "INSERT INTO crons (name, job_name, cron, error) VALUES ('nightly', 'm.f', '0 3 * * *', 'why')"
    )
    (breach,) = system.audit().breaches
    assert (breach.check, breach.count) == ("ticks", 1)
    assert "without ticks" in breach.explanation


OF_TICK = (
    "tag = 'cron:nightly', context = '{\"cron\": \"nightly\"}', scheduled_at = staged_at - interval '1 s'"
)


def test_two_jobs_of_one_tick_are_a_breach_wherever_they_are(system: System) -> None:
    system.finished()
    system.execute(f"UPDATE finished_jobs SET {OF_TICK}")
    running(system)
    system.execute(
        f"UPDATE inflight_jobs SET {OF_TICK}; UPDATE inflight_jobs SET (scheduled_at, staged_at) = "
        "(SELECT scheduled_at, staged_at FROM finished_jobs)"
    )
    (breach,) = system.audit().breaches
    assert (breach.check, breach.count, len(breach.ids)) == ("ticks", 2, 2)
    assert "of schedule nightly" in breach.explanation

    # Replayed, or started by hand.
    system.execute("UPDATE inflight_jobs SET scheduled_at = staged_at")
    assert checks(system) == []
    system.execute("UPDATE finished_jobs SET scheduled_at = staged_at")
    assert checks(system) == []

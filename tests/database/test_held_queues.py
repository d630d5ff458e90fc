"""Rules that cannot be applied hold only their own queue, and every command reports it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from drain import queues
from drain.admission.keyed_queue import RuledQueue
from drain.contrib.check.thresholds import Level, Thresholds, judge
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import Redelivery
from drain.read.explain import explain
from drain.read.system import read
from tests.admitting import QUEUE, stage
from tests.database.test_admission_of_redelivery import a_round, delivered, rounds_until
from tests.database.test_redelivery import claim, fail, new_leader
from tests.helpers import query, wait_until
from tests.process.test_audit import System

# Rules that this version refuses and an earlier one has written, and checks that refuse them.
UNREADABLE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a burst that takes millennia": (
        "rate, burst",
        "'1/d', 3000000",
        ("burst_must_fill_within_a_year",),
    ),
    "weights with an empty key": (
        "running, fair, weights",
        """1, true, '{"": 2}'""",
        ("keys_of_weights_must_have_1_to_255_characters",),
    ),
}


def write_unreadable(database_url: str, what: str) -> None:
    columns, values, checks = UNREADABLE[what]
    for check in checks:
        query(database_url, f"ALTER TABLE queues DROP CONSTRAINT {check}")
    query(database_url, f"INSERT INTO queues (queue, {columns}) VALUES ('{QUEUE}', {values})")


def error_of(database_url: str) -> str | None:
    ((error,),) = query(database_url, "SELECT error FROM queues WHERE queue = %s", QUEUE)
    return error  # type: ignore[no-any-return]


@contextmanager
def following(database_url: str, redis_url: str) -> Iterator[tuple[Enqueuer, Redelivery]]:
    """A leader that has read the rules."""
    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        wait_until(lambda: enqueuer.look() or QUEUE in enqueuer.admission.ruled)
        yield enqueuer, redelivery


@pytest.mark.parametrize("what", UNREADABLE)
def test_unreadable_rules_hold_only_their_own_queue_until_changed(
    database_url: str, redis_url: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_unreadable(database_url, what)
    held, others = stage(database_url, 2), stage(database_url, 3, queue="mail")
    with following(database_url, redis_url) as (enqueuer, redelivery), caplog.at_level(logging.ERROR):
        for _ in range(5):
            a_round(enqueuer, redelivery)
        assert delivered(database_url) == others
        assert error_of(database_url)

        query(database_url, "DELETE FROM queues")
        rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [*held, *others])
    events = [vars(record) for record in caplog.records]
    assert [event["queue"] for event in events if event.get("event") == "queue_held"] == [QUEUE]


def test_every_report_says_that_a_queue_is_held(database_url: str, redis_url: str) -> None:
    write_unreadable(database_url, "a burst that takes millennia")
    (job_id,) = stage(database_url)
    system = System(database_url, redis_url)
    with following(database_url, redis_url), psycopg.connect(database_url, autocommit=True) as connection:
        query(database_url, "UPDATE drain_state SET leader = 'me', leader_since = now()")
        reason = error_of(database_url)
        assert reason is not None
        assert "longer than a year" in reason
        told = explain(connection, None, job_id)
        assert (told.finding.cause, reason in told.finding.why) == ("held", True)
        assert read(connection).queues[QUEUE].held == reason
        findings = judge(read(connection), Thresholds()).findings
        assert [found.level for found in findings if found.name == "held"] == [Level.CRITICAL]
        breaches = [breach for breach in system.audit().breaches if breach.check == "rules"]
        assert [reason in breach.explanation for breach in breaches] == [True]


@pytest.mark.parametrize("method", ["look", "select", "redeliverable", "hint", "admitted", "change"])
@pytest.mark.parametrize(
    "error", [psycopg.errors.DatetimeFieldOverflow("too far"), OverflowError("too large")]
)
def test_any_error_caused_by_rule_values_holds_their_queue(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    with psycopg.connect(database_url) as connection:
        queues.set(connection, QUEUE, running=5)
        queues.set(connection, "mail", running=5)
    with following(database_url, redis_url) as (enqueuer, redelivery):
        (retry,) = stage(database_url)
        rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [retry])
        original = getattr(RuledQueue, method)

        def fail_in_one(ruled: RuledQueue, *arguments: Any, **options: Any) -> Any:
            # A queue that wakes has no rules before its first change.
            if (arguments[0] if method == "change" else ruled.rules).queue == QUEUE:
                if method in ("select", "redeliverable"):
                    # As it is in a transaction after an error of the server.
                    with pytest.raises(psycopg.DataError):
                        ruled._connection.execute("SELECT now() - make_interval(secs => 1e14)")
                raise error
            return original(ruled, *arguments, **options)

        monkeypatch.setattr(RuledQueue, method, fail_in_one)
        fail(database_url, claim(database_url, retry), wait=timedelta())
        stage(database_url)
        others = stage(database_url, queue="mail")
        enqueuer.admission.expect_arrivals()
        if method == "change":
            with psycopg.connect(database_url) as connection:
                queues.set(connection, QUEUE, running=6)
        rounds_until(enqueuer, redelivery, lambda: error_of(database_url) == str(error))
        rounds_until(enqueuer, redelivery, lambda: set(others) <= set(delivered(database_url)))

        monkeypatch.undo()
        before = delivered(database_url)
        for _ in range(5):
            a_round(enqueuer, redelivery)
        assert delivered(database_url) == before
        with psycopg.connect(database_url) as connection:
            queues.set(connection, QUEUE, running=7)
        rounds_until(enqueuer, redelivery, lambda: len(delivered(database_url)) == 3)
        rounds_until(enqueuer, redelivery, lambda: error_of(database_url) is None)

"""The audit finds each breach, and only that one; of a live system it raises no false alarm."""

import json
import os
import pty
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from redis import Redis
from rq import SimpleWorker

from drain import stage
from drain.__main__ import main
from drain.audit import CHECKS, PATIENCE_SECONDS, Breach, Report, audit
from drain.audit.attended import AttendedCheck
from drain.audit.recheck import look_until_clear
from drain.audit.report import OF_REDIS
from drain.database import postgres
from drain.enqueuer import redelivery
from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import claims, finishes, outcomes, waiting
from drain.tables.claims import Claim
from drain.terminal import progress
from drain.wire import Producer, queues as queues_module
from tests import jobs_for_tests as jobs
from tests.helpers import (
    NAMESPACE,
    ROOT,
    connected,
    drain_command,
    environment,
    ids_in,
    leading,
    new_enqueuer,
    pushed,
    query,
    stage_jobs,
    wait_until,
)

TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")
NEVER_GIVEN = 10**9
# Far beyond what anything takes.
LONG = 60
LATER = "now() + interval '1 hour'"
# A row of each table that no other check objects to, under an id and a delivery number of the test's choice.
INSERT = {
    "staged_jobs": "INSERT INTO staged_jobs (id, job_name, scheduled_at) OVERRIDING SYSTEM VALUE "
    f"VALUES (%s, 'm.f', {LATER})",
    "inflight_jobs": "INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, "
    "staged_at, delivery, attempts, fencing_token, claimed_at, claimed_by, next_run_at) "
    f"VALUES (%s, 'm.f', '[]', '{{}}', 'default', 0, now(), now(), 0, 1, 1, now(), 'w', {LATER})",
    "finished_jobs": "INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, "
    "staged_at, moved_at, claimed_at, finished_at, attempts, fencing_token) "
    "VALUES (%s, 'm.f', '[]', '{}', 'default', 0, now(), now(), now(), now(), now(), 1, 1)",
    "dead_jobs": "INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, "
    "staged_at, reason, explanation) VALUES (%s, 'm.f', '[]', '{}', 'default', 0, now(), now(), 'failed', '')",
}


class System:
    """A database and a Redis that no process of ours works on, but those of the test."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        self.env = environment(database_url, redis_url)
        self._leader: Enqueuer | None = None

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return query(self.database_url, statement, *parameters)

    @contextmanager
    def connected(self) -> Iterator[tuple[postgres.Connection, Producer]]:
        with (
            closing(postgres.connect(self.database_url, "audit")) as connection,
            closing(Producer(self.redis_url, NAMESPACE)) as redis,
        ):
            yield connection, redis

    def audit(self, patience_seconds: float = 0, **options: Any) -> Report:
        with self.connected() as (connection, redis):
            return audit(connection, redis, patience_seconds=patience_seconds, **options)

    def command(self, words: str = "--patience-seconds 0", **more: str) -> Result:
        result = CliRunner().invoke(main, ["audit", *words.split()], env=self.env | more)
        assert isinstance(result.exception, SystemExit | None), result.exception
        return result

    def breach(self) -> Breach:
        """The only breach there is, of which the command tells on its one line more and with its exit code."""
        report = self.audit()
        (breach,) = report.breaches
        result = self.command()
        assert result.exit_code == 1
        assert len(result.stdout.splitlines()) == len(CHECKS) + 2
        assert f"{breach.count} {breach.explanation}" in result.stdout
        assert "FAIL  " + breach.check in result.stdout
        return breach

    def enqueue(self) -> AbstractContextManager[Enqueuer]:
        return nullcontext(self._leader) if self._leader else new_enqueuer(self.database_url, self.redis_url)

    def fill(self) -> None:
        """Make one job in each condition, all of them drained by one leader."""
        with self.enqueue() as self._leader:
            for make in (self.finished, self.dead, self.claimed, self.waiting, self.drained):
                make()
            self.scheduled()
            self.revived()
        self._leader = None

    def drained(self, **options: Any) -> int:
        (job_id,) = stage_jobs(self.database_url, **options)
        with self.enqueue() as enqueuer:
            enqueuer.drain()
            enqueuer.redis.mark()
        return job_id

    def claim(self, job_id: int) -> Claim:
        """Claim it and take it out of its list."""
        claim = claims.claim(connected(self.database_url), job_id, worker="test", limits={})
        assert claim is not None
        self.pop(job_id)
        return claim

    def claimed(self) -> int:
        job_id = self.drained()
        self.claim(job_id)
        return job_id

    def finish(self, claim: Claim) -> None:
        assert finishes.finish(connected(self.database_url), claim)

    def finished(self) -> int:
        job_id = self.drained()
        self.finish(self.claim(job_id))
        return job_id

    def dead(self) -> int:
        job_id = self.drained()
        claim = self.claim(job_id)
        assert outcomes.bury_claimed(
            connected(self.database_url), claim, reason="failed", explanation="for a test"
        )
        return job_id

    def waiting(self) -> int:
        job_id = self.drained()
        claim = self.claim(job_id)
        assert outcomes.retry_later(connected(self.database_url), claim, 3600, {"message": "not yet"})
        return job_id

    def scheduled(self) -> int:
        (job_id,) = stage_jobs(self.database_url)
        self.execute(f"UPDATE staged_jobs SET scheduled_at = {LATER} WHERE id = %s", job_id)
        return job_id

    def revived(self) -> int:
        """Retried by a person, with one dead attempt on record."""
        job_id = self.dead()
        assert CliRunner().invoke(main, f"dead retry --yes {job_id}".split(), env=self.env).exit_code == 0
        return job_id

    def pop(self, job_id: int, queue: str = "default") -> None:
        with Redis.from_url(self.redis_url) as client:
            for rq_id in pushed(self.redis_url, queue):
                if rq_id.startswith(f"{NAMESPACE}-{job_id}-"):
                    client.lrem(f"rq:queue:{queue}", 1, rq_id)

    def push(self, *rq_ids: str, queue: str = "default") -> None:
        with Redis.from_url(self.redis_url) as client:
            client.rpush(f"rq:queue:{queue}", *rq_ids)
            client.sadd("rq:queues", f"rq:queue:{queue}")


@pytest.fixture
def system(database_url: str, redis_url: str) -> System:
    """One job in each condition, and nothing wrong."""
    system = System(database_url, redis_url)
    system.fill()
    assert system.audit().ok
    return system


def one_in(system: System, table: str, condition: str = "true") -> int:
    return int(system.execute(f"SELECT min(id) FROM {table} WHERE {condition}")[0][0])


# --- a system in which all is well


def test_a_sound_system_has_no_breach(system: System) -> None:
    result = system.command()

    assert result.exit_code == 0
    assert result.stderr == ""
    *checks, last = result.stdout.splitlines()
    assert [line.split()[:2] for line in checks] == [["ok", name] for name in CHECKS]
    assert last == "2 staged, 3 in flight, 1 completed, 1 dead: no breach"


def test_an_empty_database_has_no_breach(database_url: str, redis_url: str) -> None:
    assert System(database_url, redis_url).command().exit_code == 0


def test_json_output_reports_the_same(system: System) -> None:
    (line,) = system.command("--json").stdout.splitlines()

    report = json.loads(line)
    assert report == {
        "ok": True,
        "counts": {"staged": 2, "inflight": 3, "finished": 1, "dead": 1},
        "checks": [{"name": name, "ok": True, "breaches": [], "unchecked": None} for name in CHECKS],
        "redis_asked": True,
    }


def test_json_output_reports_each_breach(system: System) -> None:
    job_id = one_in(system, "dead_jobs")
    system.execute("UPDATE dead_jobs SET fencing_token = 0")

    result = system.command("--json --patience-seconds 0")

    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["ok"] is False
    (failed,) = [check for check in report["checks"] if not check["ok"]]
    assert failed["name"] == "tokens"
    (breach,) = failed["breaches"]
    assert (breach["check"], breach["count"], breach["ids"]) == ("tokens", 1, [job_id])
    assert "in dead_jobs" in breach["explanation"]


def test_an_audit_without_redis_reports_that_it_was_not_checked(system: System) -> None:
    system.push(f"{NAMESPACE}-{NEVER_GIVEN}-1")

    result = system.command(DRAIN_REDIS_URL="")
    report = json.loads(system.command("--json", DRAIN_REDIS_URL="").stdout)

    assert result.exit_code == 0
    assert "redis       not checked, Redis is not configured" in result.stdout
    assert [check["name"] for check in report["checks"]] == [name for name in CHECKS if name not in OF_REDIS]
    assert report["redis_asked"] is False


@pytest.mark.parametrize(
    "words", ["--overdue-seconds -1", "--overdue-seconds soon", "--patience-seconds x", "everything"]
)
def test_invalid_options_are_a_usage_error(system: System, words: str) -> None:
    assert system.command(words).exit_code == 2


def test_help_explains_the_checks_and_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(main, ["audit", "--help"]).stdout.split())

    for part in (
        "Exit codes: 0 no problem; 1 problems",
        "--overdue-seconds",
        "--json | jq",
        "no job is lost, duplicated or stuck",
        "changes nothing",
        "overdue",
    ):
        assert part in text


def test_an_audit_changes_nothing(system: System) -> None:
    def everything() -> list[list[tuple[Any, ...]]]:
        return [system.execute(f"SELECT job.*, job.xmin FROM {table} AS job ORDER BY id") for table in TABLES]

    before = everything(), pushed(system.redis_url)

    assert system.audit().ok

    assert (everything(), pushed(system.redis_url)) == before


# --- once


@pytest.mark.parametrize(
    ("one", "other"), [(one, other) for one in TABLES for other in TABLES if one < other]
)
def test_an_id_that_is_in_two_tables_is_found(system: System, one: str, other: str) -> None:
    job_id = system.scheduled()
    system.execute("DELETE FROM staged_jobs WHERE id = %s", job_id)
    for table in (one, other):
        system.execute(INSERT[table], job_id)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("once", 1, (job_id,))
    assert one in breach.explanation
    assert other in breach.explanation


def test_an_id_that_is_in_one_table_twice_is_found(system: System) -> None:
    job_id = system.scheduled()
    system.execute("ALTER TABLE staged_jobs_scheduled DROP CONSTRAINT staged_jobs_scheduled_pkey")
    for _ in range(2):
        system.execute(INSERT["staged_jobs"], job_id)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("once", 1, (job_id,))
    assert breach.explanation == "in staged_jobs more than once"


@pytest.mark.parametrize("table", TABLES)
def test_an_id_that_was_never_handed_out_is_found(system: System, table: str) -> None:
    system.execute(INSERT[table], NEVER_GIVEN)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("once", 1, (NEVER_GIVEN,))
    assert table in breach.explanation
    assert "never assigned" in breach.explanation


def test_the_first_id_of_an_unused_sequence_counts_as_never_assigned(
    database_url: str, redis_url: str
) -> None:
    query(database_url, INSERT["dead_jobs"], 1)

    assert System(database_url, redis_url).breach().ids == (1,)


# --- claimed


@pytest.mark.parametrize(
    ("column", "value", "explanation"),
    [
        ("fencing_token", "0", "without a claim's token"),
        ("attempts", "0", "without an attempt"),
        ("claimed_at", "NULL", "never claimed"),
        ("finished_at", "claimed_at - interval '2 s'", "finished before they were claimed"),
        ("moved_at", "claimed_at + interval '2 s'", "claimed before they were drained"),
    ],
)
def test_a_finish_without_a_claim_is_found(system: System, column: str, value: str, explanation: str) -> None:
    job_id = one_in(system, "finished_jobs")
    system.execute("ALTER TABLE finished_jobs ALTER claimed_at DROP NOT NULL")
    # Without an attempt on record, the token alone is not too low.
    more = ", attempts = 0" if column == "fencing_token" else ""
    system.execute(f"UPDATE finished_jobs SET {column} = {value}{more}")

    breaches = [breach for breach in system.audit().breaches if explanation in breach.explanation]

    assert [(breach.check, breach.count, breach.ids) for breach in breaches] == [("claimed", 1, (job_id,))]
    if not more:
        assert system.breach() == breaches[0]
    assert system.command().exit_code == 1


def test_a_clock_set_back_by_less_than_a_second_is_not_a_breach(system: System) -> None:
    back = "interval '0.9 s'"
    system.execute(
        f"UPDATE finished_jobs SET finished_at = claimed_at - {back}, moved_at = claimed_at + {back}"
    )

    assert system.audit().ok


# --- tokens


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("inflight_jobs", "fencing_token = 1, attempts = 2"),
        (
            "inflight_jobs",
            """fencing_token = 3, attempts = 1, history = '[{"attempts": 1}, {"attempts": 2}]'""",
        ),
        ("finished_jobs", "fencing_token = 1, attempts = 2"),
        (
            "finished_jobs",
            """fencing_token = 3, attempts = 1, history = '[{"attempts": 1}, {"attempts": 2}]'""",
        ),
        ("dead_jobs", "fencing_token = 1, attempts = 2"),
        ("dead_jobs", """fencing_token = 3, attempts = 1, history = '[{"attempts": 1}, {"attempts": 2}]'"""),
        ("staged_jobs", """fencing_token = 2, history = '[{"attempts": 1}, {"attempts": 2}]'"""),
    ],
)
def test_a_token_that_went_backwards_is_found(system: System, table: str, change: str) -> None:
    job_id = one_in(system, table)
    system.execute(f"UPDATE {table} SET {change} WHERE id = %s", job_id)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("tokens", 1, (job_id,))
    assert table in breach.explanation


@pytest.mark.parametrize("table", TABLES)
def test_a_token_lower_than_a_refused_one_is_found(system: System, table: str) -> None:
    job_id = one_in(system, table)
    refused = (
        "INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (%s, %s, 'w', 'dead')"
    )
    system.execute(f"UPDATE {table} SET fencing_token = 7 WHERE id = %s", job_id)
    system.execute(refused, job_id, 6)
    # One that asked twice, since the first answer never came.
    system.execute(refused, job_id, 7)
    assert system.audit().ok
    system.execute(refused, job_id, 8)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("tokens", 1, (job_id,))
    assert "refused" in breach.explanation


@pytest.mark.parametrize("table", ["inflight_jobs", "dead_jobs"])
def test_a_negative_number_of_attempts_is_found(system: System, table: str) -> None:
    job_id = one_in(system, table)
    system.execute(f"UPDATE {table} SET attempts = -1 WHERE id = %s", job_id)

    breach = system.breach()

    assert (breach.check, breach.ids) == ("tokens", (job_id,))
    assert table in breach.explanation


@pytest.mark.parametrize(
    "history", ["[]", "1", '"text"', '{"attempts": 1}', '[{"attempts": "2"}]', "[[], null, {}]", "null"]
)
def test_a_history_written_by_an_application_is_accepted(system: System, history: str) -> None:
    system.execute("UPDATE staged_jobs SET fencing_token = 1, history = %s", history)

    assert system.audit().ok


# --- conditions


@pytest.mark.parametrize(
    ("change", "explanation"),
    [
        ("next_run_at = now()", "both claimed and waiting"),
        ("claimed_at = NULL", "without a claim"),
        ("claimed_by = NULL", "without a claim"),
        ("fencing_token = 0, attempts = 0", "without a claim"),
    ],
)
def test_contradictory_conditions_are_found(system: System, change: str, explanation: str) -> None:
    job_id = one_in(system, "inflight_jobs", "lease_expires_at IS NOT NULL")
    system.execute(f"UPDATE inflight_jobs SET {change} WHERE id = %s", job_id)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("conditions", 1, (job_id,))
    assert explanation in breach.explanation


# --- deliveries


def test_a_delivery_number_that_two_jobs_share_is_found(system: System) -> None:
    ids = sorted([system.waiting(), system.waiting()])
    system.execute("UPDATE inflight_jobs SET delivery = 1 WHERE id = ANY (%s)", ids)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("deliveries", 2, tuple(ids))
    assert "share" in breach.explanation


def test_a_delivery_number_that_was_never_handed_out_is_found(system: System) -> None:
    job_id = system.waiting()
    system.execute("UPDATE inflight_jobs SET delivery = %s WHERE id = %s", NEVER_GIVEN, job_id)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("deliveries", 1, (job_id,))
    assert "never assigned" in breach.explanation


def test_a_watermark_above_the_last_delivery_is_found(system: System) -> None:
    system.execute("SELECT setval('drain_pushed_up_to', %s)", NEVER_GIVEN)

    breach = system.breach()

    assert (breach.check, breach.ids) == ("deliveries", ())
    assert str(NEVER_GIVEN) in breach.explanation


def test_a_missing_row_of_the_enqueuer_is_found(system: System) -> None:
    system.execute("DELETE FROM drain_state")

    breach = system.breach()

    assert (breach.check, breach.count) == ("deliveries", 0)
    assert "drain_state" in breach.explanation


def test_a_second_row_of_the_enqueuer_is_found(system: System) -> None:
    system.execute("ALTER TABLE drain_state DROP CONSTRAINT drain_state_pkey")
    system.execute("INSERT INTO drain_state DEFAULT VALUES")

    breach = system.breach()

    assert (breach.check, breach.count) == ("deliveries", 2)


# --- overdue


def overdue_staged(system: System) -> int:
    (job_id,) = stage_jobs(system.database_url)
    long_ago(system, "staged_jobs", "staged_at", job_id)
    long_ago(system, "staged_jobs", "scheduled_at", job_id)
    return job_id


def overdue_scheduled(system: System) -> int:
    job_id = system.scheduled()
    long_ago(system, "staged_jobs", "scheduled_at", job_id)
    system.execute("UPDATE staged_jobs SET staged_at = scheduled_at - interval '1 s' WHERE id = %s", job_id)
    return job_id


def overdue_lease(system: System) -> int:
    job_id = system.claimed()
    long_ago(system, "inflight_jobs", "lease_expires_at", job_id)
    return job_id


def overdue_retry(system: System) -> int:
    job_id = system.waiting()
    long_ago(system, "inflight_jobs", "next_run_at", job_id)
    return job_id


def long_ago(system: System, table: str, column: str, job_id: int) -> None:
    """An hour ago, which is never a matter of the seconds that a test takes."""
    system.execute(f"UPDATE {table} SET {column} = now() - interval '1 hour' WHERE id = %s", job_id)


OVERDUE = pytest.mark.parametrize(
    ("make", "explanation"),
    [
        (overdue_staged, "due and not drained"),
        (overdue_scheduled, "due and not drained"),
        (overdue_lease, "since the lease expired"),
        (overdue_retry, "due for their next attempt"),
    ],
)


@OVERDUE
def test_an_overdue_job_is_found(system: System, make: Callable[[System], int], explanation: str) -> None:
    job_id = make(system)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("overdue", 1, (job_id,))
    assert explanation in breach.explanation
    assert "more than 60 s" in breach.explanation
    assert "there is no leader" in breach.explanation


@OVERDUE
def test_the_caller_decides_when_a_job_is_overdue(
    system: System, make: Callable[[System], int], explanation: str
) -> None:
    make(system)

    assert system.command("--overdue-seconds 5400 --patience-seconds 0").exit_code == 0
    assert system.command("--overdue-seconds 1800 --patience-seconds 0").exit_code == 1


def test_an_existing_leader_is_not_reported_as_missing(system: System) -> None:
    job_id = overdue_staged(system)
    # A list that may be full would explain it.
    system.execute("UPDATE staged_jobs SET queue = 'mail' WHERE id = %s", job_id)

    with system.enqueue():
        assert "there is no leader" not in system.breach().explanation


def test_an_overdue_row_is_found_even_while_locked(system: System) -> None:
    job_id = overdue_staged(system)

    with psycopg.connect(system.database_url) as connection:
        connection.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", [job_id])
        with system.enqueue() as enqueuer:
            enqueuer.drain()

        assert system.breach().ids == (job_id,)


def test_a_dead_job_that_was_just_retried_is_not_overdue(system: System) -> None:
    job_id = system.revived()
    long_ago(system, "staged_jobs", "staged_at", job_id)
    long_ago(system, "staged_jobs", "scheduled_at", job_id)

    assert system.audit().ok


def test_retries_that_a_failing_queue_holds_back_are_not_overdue(system: System) -> None:
    ids = [overdue_retry(system) for _ in range(waiting.FAILURES_IN_A_ROW)]
    assert system.audit().ok

    system.finished()

    assert system.breach().ids == tuple(ids)


def test_expired_leases_of_a_failing_queue_are_still_overdue(system: System) -> None:
    for _ in range(waiting.FAILURES_IN_A_ROW):
        system.waiting()
    job_id = overdue_lease(system)

    assert system.breach().ids == (job_id,)


@OVERDUE
def test_a_job_that_moves_on_during_the_audit_is_not_overdue(
    system: System, make: Callable[[System], int], explanation: str
) -> None:
    job_id = make(system)

    def clear(step: str) -> None:
        if "rechecking" in step:
            system.execute("DELETE FROM staged_jobs WHERE id = %s", job_id)
            system.execute("DELETE FROM inflight_jobs WHERE id = %s", job_id)

    assert system.audit(PATIENCE_SECONDS, progress=clear).ok


# --- redis


def delivered(system: System) -> tuple[int, str]:
    """A job that waits in a list, and its RQ id."""
    job_id = system.drained()
    return job_id, next(rq_id for rq_id in pushed(system.redis_url) if f"-{job_id}-" in rq_id)


def test_a_delivery_missing_from_its_list_is_found(system: System) -> None:
    job_id, _ = delivered(system)
    system.pop(job_id)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("redis", 1, (job_id,))
    assert "not in their queue's Redis list (default); there is no leader" in breach.explanation


def test_a_key_that_is_not_a_list_is_named(system: System) -> None:
    delivered(system)
    with Redis.from_url(system.redis_url) as client:
        client.set("rq:queue:default", "text")

    breach = system.breach()

    assert breach.check == "redis"
    assert "the Redis key rq:queue:default is not a list: rename it" in breach.explanation


def test_a_delivery_that_is_in_the_list_under_another_number_is_found(system: System) -> None:
    job_id, rq_id = delivered(system)
    system.pop(job_id)
    system.push(f"{NAMESPACE}-{job_id}-{int(rq_id.split('-')[-1]) - 1}")

    assert system.breach().ids == (job_id,)


def test_a_delivery_that_is_in_the_list_of_another_queue_is_found(system: System) -> None:
    job_id, rq_id = delivered(system)
    system.pop(job_id)
    system.push(rq_id, queue="other")

    assert system.breach().ids == (job_id,)


def test_a_redis_that_lost_its_data_is_named_as_the_reason(system: System) -> None:
    with Redis.from_url(system.redis_url) as client:
        client.flushall()

    assert f"never had, the namespace {NAMESPACE}" in system.breach().explanation


def test_a_key_that_is_not_a_list_holds_no_deliveries(system: System) -> None:
    with Redis.from_url(system.redis_url) as client:
        client.delete("rq:queue:default")
        client.set("rq:queue:default", "not a list")

    assert system.breach().ids == (
        one_in(system, "inflight_jobs", "lease_expires_at IS NULL AND next_run_at IS NULL"),
    )


def test_an_unknown_id_in_redis_is_found(system: System) -> None:
    system.push(f"{NAMESPACE}-{NEVER_GIVEN}-1", queue="mail")

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("redis", 1, (NEVER_GIVEN,))
    assert "in Redis (mail) but in no table" in breach.explanation


def test_a_listed_delivery_number_that_was_never_assigned_is_found(system: System) -> None:
    job_id = one_in(system, "finished_jobs")
    system.push(f"{NAMESPACE}-{job_id}-{NEVER_GIVEN}")

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("redis", 1, (job_id,))
    assert "numbers that were never assigned" in breach.explanation


def test_old_deliveries_and_unrelated_entries_are_harmless(system: System) -> None:
    _, rq_id = delivered(system)
    system.push(rq_id, rq_id)
    for table in TABLES:
        system.push(f"{NAMESPACE}-{one_in(system, table)}-1")
    system.push(
        "7f3e",
        f"other-{NEVER_GIVEN}-1",
        f"x{NAMESPACE}-{NEVER_GIVEN}-1",
        f"{NAMESPACE}-{NEVER_GIVEN}-forward",
    )
    system.push(f"{NAMESPACE}-{'9' * 5000}-1", f"{NAMESPACE}-1-1-1", f"{NAMESPACE}-\u0661-1")

    assert system.audit().ok


def test_a_list_unknown_to_rq_is_still_read(system: System) -> None:
    with Redis.from_url(system.redis_url) as client:
        client.delete("rq:queues")

    assert system.audit().ok


def test_a_list_of_many_pages_is_read_to_its_end(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_module, "_IDS_PER_PAGE", 3)
    ids = stage_jobs(system.database_url, 10)
    with system.enqueue() as enqueuer:
        enqueuer.drain()
    assert system.audit().ok
    system.pop(ids[0])
    system.pop(ids[9])

    assert system.audit().breaches[0].ids == (ids[0], ids[9])


def test_a_list_that_moves_while_it_is_read_is_read_completely(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_module, "_IDS_PER_PAGE", 3)
    system.push(*(f"{NAMESPACE}-{number}-{number}" for number in range(20)), queue="moving")
    seen = set()
    with closing(Producer(system.redis_url, NAMESPACE)) as redis, Redis.from_url(system.redis_url) as client:
        for page in redis.listed("moving"):
            seen |= {job_id for job_id, _ in page}
            client.lpop("rq:queue:moving")
            system.push(f"{NAMESPACE}-100-100", f"{NAMESPACE}-101-101", queue="moving")

        assert seen >= {
            number
            for (number,) in ((int(i.split("-")[1]),) for i in pushed(system.redis_url, "moving"))
            if number < 100
        }


def clears(system: System, clear: Callable[[], object]) -> bool:
    """Whether nothing is wrong in the end if `clear` is called once something has seemed wrong."""
    called: list[str] = []

    def call_once(step: str) -> None:
        if "rechecking" in step and not called:
            called.append(step)
            clear()

    report = system.audit(PATIENCE_SECONDS, progress=call_once)
    assert called
    return report.ok


def test_a_popped_delivery_that_is_claimed_meanwhile_is_not_missing(system: System) -> None:
    job_id, _ = delivered(system)
    system.pop(job_id)

    assert clears(system, lambda: system.claim(job_id))


def test_a_delivery_pushed_meanwhile_is_not_missing(system: System) -> None:
    job_id, rq_id = delivered(system)
    system.pop(job_id)

    assert clears(system, lambda: system.push(rq_id))


def test_a_delivery_renumbered_meanwhile_is_not_missing(system: System) -> None:
    job_id, _ = delivered(system)
    system.pop(job_id)

    def redeliver() -> None:
        with system.enqueue() as enqueuer:
            redelivery.Redelivery(enqueuer, lost_after_seconds=0).run_once()
            assert redelivery.Redelivery(enqueuer, lost_after_seconds=0).run_once() == 0

    with Redis.from_url(system.redis_url) as client:
        client.delete(f"drain:{NAMESPACE}")
    assert clears(system, redeliver)


def test_a_delivery_missing_under_a_newer_number_is_not_reported(system: System) -> None:
    job_id, _ = delivered(system)
    system.pop(job_id)

    assert clears(
        system, lambda: system.execute("UPDATE inflight_jobs SET delivery = 0 WHERE id = %s", job_id)
    )


def test_an_unknown_id_popped_meanwhile_is_not_reported(system: System) -> None:
    system.push(f"{NAMESPACE}-{NEVER_GIVEN}-1")

    assert clears(system, lambda: system.pop(NEVER_GIVEN))


def test_a_job_that_is_staged_and_pushed_after_the_first_look_is_known(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = Producer.queues

    def stage_first(redis: Producer) -> set[str]:
        system.drained()
        return queues(redis)

    monkeypatch.setattr(Producer, "queues", stage_first)

    assert system.audit().ok


def test_checks_that_need_an_unreachable_redis_are_unchecked_not_breached(
    system: System,
) -> None:
    unattended(system)
    away = {"DRAIN_REDIS_URL": "redis://:hush@127.0.0.1:1/0"}
    result = system.command(**away)
    report = json.loads(system.command("--json --patience-seconds 0", **away).stdout)

    assert result.exit_code == 3
    for check in OF_REDIS:
        assert f"?     {check:10}  could not be checked" in result.stdout
    assert "Redis at 127.0.0.1:1/0 does not take commands" in result.stdout
    assert "hush" not in result.output
    assert "FAIL" not in result.stdout
    assert len(result.stdout.splitlines()) == len(CHECKS) + 2
    assert report["ok"] is False
    assert {check["name"] for check in report["checks"] if check["ok"] is None} == set(OF_REDIS)
    assert all(check["breaches"] == [] for check in report["checks"])


def test_a_breach_outranks_an_unreachable_redis(system: System) -> None:
    overdue_lease(system)

    assert system.command(DRAIN_REDIS_URL="redis://127.0.0.1:1").exit_code == 1


def test_a_redis_that_recovers_meanwhile_is_not_a_breach(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    unattended(system)
    register(system, "mail")
    with (
        closing(postgres.connect(system.database_url, "audit")) as connection,
        closing(Producer("redis://127.0.0.1:1", NAMESPACE)) as redis,
        closing(Producer(system.redis_url, NAMESPACE)) as living,
    ):

        def come_back(step: str) -> None:
            if "rechecking" in step:
                redis._redis.connection_pool = living._redis.connection_pool

        assert audit(connection, redis, patience_seconds=PATIENCE_SECONDS, progress=come_back).ok


# --- queues without a worker


def unattended(system: System, jobs: int = 2, queue: str = "mail") -> list[int]:
    """Delivered an hour ago, and nobody takes them."""
    ids = [system.drained(queue=queue) for _ in range(jobs)]
    for column in ("staged_at", "scheduled_at", "moved_at"):
        for job_id in ids:
            long_ago(system, "inflight_jobs", column, job_id)
    return ids


def register(system: System, queue: str) -> None:
    """Let a stock worker of RQ's appear, which never works."""
    with Redis.from_url(system.redis_url) as client:
        SimpleWorker([queue], connection=client).register_birth()  # type: ignore[no-untyped-call]


def test_a_queue_with_jobs_and_no_worker_is_found(system: System) -> None:
    ids = unattended(system)

    breach = system.breach()

    assert (breach.check, breach.count, breach.ids) == ("attended", 2, tuple(ids))
    assert "queue mail, which has no worker, since " in breach.explanation
    assert "start `drain work mail`" in breach.explanation


def test_a_queue_with_a_worker_is_attended_however_long_its_jobs_wait(system: System) -> None:
    unattended(system)
    register(system, "mail")

    assert system.audit().ok


def test_the_caller_decides_how_long_jobs_may_wait_without_a_worker(system: System) -> None:
    unattended(system)

    assert system.command("--unattended-seconds 5400 --patience-seconds 0").exit_code == 0
    assert system.command("--unattended-seconds 1800 --patience-seconds 0").exit_code == 1


def test_a_worker_that_starts_meanwhile_is_found(system: System) -> None:
    unattended(system)

    def start(step: str) -> None:
        if "rechecking" in step:
            register(system, "mail")

    assert system.audit(PATIENCE_SECONDS, progress=start).ok


def test_jobs_waiting_for_the_enqueuer_or_their_time_are_not_unattended(system: System) -> None:
    stage_jobs(system.database_url, queue="forwarded")
    system.waiting()
    system.execute("UPDATE staged_jobs SET staged_at = now() - interval '1 hour'")
    system.execute(
        "UPDATE inflight_jobs SET (staged_at, scheduled_at, moved_at, claimed_at, failed_at) = "
        "(SELECT at, at, at, at, at FROM (SELECT now() - interval '1 hour' AS at) AS past) "
        "WHERE next_run_at IS NOT NULL OR lease_expires_at IS NOT NULL"
    )

    assert [each.check for each in system.audit().breaches if each.check == "attended"] == []


def test_a_queue_that_seems_unattended_only_later_is_not_a_breach_yet(system: System) -> None:
    unattended(system)

    def wait_elsewhere(step: str) -> None:
        if "rechecking" in step:
            system.execute("UPDATE inflight_jobs SET queue = 'other'")

    with (
        closing(postgres.connect(system.database_url, "audit")) as connection,
        closing(Producer(system.redis_url, NAMESPACE)) as redis,
    ):
        check = AttendedCheck(connection, redis, 300)
        look_until_clear([check], PATIENCE_SECONDS, wait_elsewhere)
        assert check.breaches() == []


def test_many_queues_without_a_worker_are_summarised(system: System) -> None:
    system.execute(
        "INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "delivery) SELECT id, 'm.f', '[]', '{}', 'queue-' || id, 0, now() - id * interval '1 hour', "
        "now() - id * interval '1 hour', 0 FROM generate_series(10000, 10049) AS ids (id)"
    )

    breaches = [each for each in system.audit().breaches if each.check == "attended"]

    assert len(breaches) == 11
    assert "queue-10049" in breaches[0].explanation
    assert (breaches[-1].count, breaches[-1].ids) == (40, ())


# --- one snapshot, many rows


def test_a_job_that_moves_while_the_tables_are_read_is_counted_once(system: System) -> None:
    before = system.audit().counts
    moves: Iterator[Callable[[], object]] = iter(
        [system.drained, system.finished, system.dead, system.waiting]
    )

    def move(step: str) -> None:
        if step.startswith("reading"):
            next(moves)()

    report = system.audit(progress=move)

    assert [breach for breach in report.breaches if breach.check != "redis"] == []
    assert report.counts == before


def test_staged_rows_are_locked_before_the_snapshot_and_released_before_the_longest_pass(
    system: System,
) -> None:
    held: dict[str, bool] = {}

    def try_to_lock(step: str) -> None:
        if step.startswith("reading"):
            table = step.removeprefix("reading ")
            try:
                with psycopg.connect(system.database_url) as connection:
                    connection.execute("LOCK TABLE staged_jobs IN ACCESS EXCLUSIVE MODE NOWAIT")
                held[table] = False
            except psycopg.errors.LockNotAvailable:
                held[table] = True

    assert system.audit(progress=try_to_lock).ok

    assert held == {"staged_jobs": True, "inflight_jobs": True, "dead_jobs": True, "finished_jobs": False}


def test_many_breaches_are_summarised(system: System) -> None:
    for queue in range(40):
        system.push(
            *(f"{NAMESPACE}-{NEVER_GIVEN - number}-1" for number in range(1, 101)), queue=f"queue-{queue}"
        )
    for table in ("dead_jobs", "finished_jobs"):
        for number in range(100):
            system.execute(INSERT[table], NEVER_GIVEN + number)
    system.execute("UPDATE finished_jobs SET fencing_token = 0")

    result = system.command()

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert len(lines) <= 21
    assert max(map(len, lines)) < 300
    assert any("100 in finished_jobs and dead_jobs" in line for line in lines)
    assert lines[-1].endswith("6 breaches")


def test_an_audit_may_run_longer_than_other_commands(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = []

    def look(connection: postgres.Connection, *_: object, **__: object) -> Report:
        bounds.append(connection.execute("SHOW statement_timeout").fetchone())
        return Report({}, (), redis_asked=False)

    monkeypatch.setattr("drain.commands.audit.audit", look)

    assert system.command().exit_code == 0
    assert bounds == [("1h",)]


def test_progress_is_shown_on_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_SHOWN_AFTER_SECONDS", 0)
    with progress.show() as step:
        step("reading a table")
    assert capsys.readouterr() == ("", "")

    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as shown:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress.show() as step:
            step("reading a table")
            text = b""
            while b"reading a table" not in text:
                text += shown.read(1000)
    assert capsys.readouterr().out == ""


# --- a system that lives


def test_the_audit_waits_longer_than_the_leader_needs_to_redeliver() -> None:
    assert PATIENCE_SECONDS > 2 * redelivery.LOST_AFTER_SECONDS


@pytest.mark.usefixtures("processes")
def test_a_busy_system_raises_no_false_alarm(database_url: str, redis_url: str) -> None:
    jobs.create_effects(database_url)
    system = System(database_url, redis_url)
    env = environment(database_url, redis_url, DRAIN_JOBS=jobs.MODULE, PYTHONPATH=str(ROOT))
    stop = threading.Event()

    def keep_staging() -> int:
        total = 0
        with psycopg.connect(database_url) as connection:
            while not stop.wait(0.001):
                job = jobs.fail_times if total % 10 == 0 else jobs.record
                arguments = [f"label-{total}", 1][: 2 if total % 10 == 0 else 1]
                stage(connection, job, arguments, queue="flaky" if total % 10 == 0 else "default")
                connection.commit()
                total += 1
                # No more than the workers get done: what waits for longer is a matter for the checks.
                while len(ids_in(database_url, "inflight_jobs")) > 200 and not stop.wait(0.01):
                    pass
        return total

    with ExitStack() as stack:
        stack.enter_context(leading(env))
        workers = [stack.enter_context(drain_command("work", "flaky", "default", env=env)) for _ in range(3)]
        staging = stack.enter_context(ThreadPoolExecutor(1)).submit(keep_staging)
        # Called in any case before the executor waits for it.
        stack.callback(stop.set)
        wait_until(lambda: ids_in(database_url, "finished_jobs"), LONG)
        for number in range(20):
            report = system.audit(PATIENCE_SECONDS)
            assert report.ok, report
            if number == 10:
                with Redis.from_url(redis_url) as client:
                    client.flushall()
        stop.set()
        total = staging.result()
        wait_until(lambda: len(ids_in(database_url, "finished_jobs")) == total, LONG)
        assert all(worker.poll() is None for worker in workers)

    report = system.audit()
    assert report.ok, report
    assert report.counts == {"staged": 0, "inflight": 0, "finished": total, "dead": 0}

"""The soak's plan, and its verdict put to the proof; the soak itself is `make soak`."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from random import Random

import pytest
from psycopg.errors import LockNotAvailable

from drain import emit, stage
from drain.audit import Breach, Report
from drain.database import postgres
from drain.tables import idempotency
from tests.interleavings import history
from tests.interleavings.history import LETTERS, Notes
from tests.soak import producer, report, tables
from tests.soak.chaos import Span, coverage
from tests.soak.plan import DEPLOYED, ENDURING, SESSIONS, Fault, Kind, names, plan
from tests.soak.servers import MIGRATE
from tests.soak.verdict import Verdict, judge, lines, read

LATER = datetime(2100, 1, 1, tzinfo=UTC)
FINISH = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at,
    moved_at, claimed_at, finished_at, attempts, fencing_token)
SELECT %s, 'soak', '[]', '{}', 'mail', 0, now(), now(), now(), clock_timestamp(), clock_timestamp(), 1, %s
"""
BURY = """
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at,
    reason, explanation)
SELECT %s, 'soak', '[]', '{}', 'mail', 0, now(), now(), 'failed', 'on purpose'
"""


class Books:
    """A database in which a job of each kind was asked for and worked, by hand."""

    def __init__(self, database_url: str) -> None:
        self.connection = postgres.connect(database_url, "test")
        tables.create(self.connection)
        for job_id, kind in ((1, "settle"), (2, "send"), (3, "doomed")):
            self.want(job_id, kind)
        self.execute(FINISH, 1, 2)
        self.execute("INSERT INTO effects VALUES (1, 2)")
        self.execute(FINISH, 2, 1)
        self.execute("INSERT INTO sent VALUES (2, 1), (2, 1)")
        self.execute(BURY, 3)

    def want(self, job_id: int, kind: str) -> None:
        self.execute(tables.WANT, job_id, kind)

    def execute(self, statement: str, *parameters: object) -> None:
        self.connection.execute(statement.encode(), parameters or None)

    def found(self, *told: int) -> dict[str, list[int]]:
        faults = judge(self.connection, told, [], {}).faults
        return {name: list(ids) for name, ids in faults.items() if ids}


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    with closing(made.connection):
        yield made


def an_hour(seed: int) -> list[Fault]:
    return list(takewhile(lambda fault: fault.at < 3600, plan(seed)))


def test_a_plan_depends_only_on_its_seed() -> None:
    assert an_hour(7) == an_hour(7)
    assert an_hour(7) != an_hour(8)


def test_a_plan_has_faults_of_every_kind_in_their_order() -> None:
    faults = an_hour(7)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert {fault.kind for fault in faults} == set(Kind)
    assert {fault.target for fault in faults if fault.kind is Kind.DISCONNECT} == set(SESSIONS)


def test_faults_stop_enduring_processes_but_never_end_them() -> None:
    befallen = {fault.kind for fault in an_hour(7) if fault.target in ENDURING}
    assert befallen == {Kind.PAUSE, Kind.LONG_PAUSE}
    assert not set(DEPLOYED) & set(ENDURING)


def test_transitions_are_counted_under_the_faults_during_which_they_were_committed() -> None:
    began = datetime(2026, 11, 28, 12, tzinfo=UTC)
    spans = [Span("worker killed", began, began + timedelta(seconds=2)), Span("Redis flushed", began)]
    letters = [
        (letter, began + timedelta(seconds=at))
        for letter, at in (("moved", -1), ("claimed", 1), ("finished", 3))
    ]
    assert coverage(spans, letters) == {name: Counter() for name in names()} | {
        "worker killed": Counter(claimed=1),
        "Redis flushed": Counter(claimed=1, finished=1),
    }


def test_sound_books_have_no_findings(books: Books) -> None:
    assert books.found(1, 2, 3) == {}


def test_a_job_that_is_nowhere_is_lost(books: Books) -> None:
    books.want(4, "send")
    assert books.found() == {"lost": [4]}


@pytest.mark.parametrize("table", ["effects", "sent"])
def test_traces_of_an_unwanted_job_mean_it_ran_without_a_commit(books: Books, table: str) -> None:
    books.execute(f"INSERT INTO {table} VALUES (5, 1)")
    assert books.found()["ran without a commit"] == [5]


def test_a_second_effect_of_one_job_is_found(books: Books) -> None:
    books.execute("INSERT INTO effects VALUES (1, 2)")
    assert books.found() == {"took effect twice": [1]}


def test_an_effect_with_a_different_token_than_the_finish_is_found(books: Books) -> None:
    books.execute("UPDATE effects SET fencing_token = 1")
    assert books.found() == {"took effect and did not finish so": [1]}


def test_a_job_that_finished_without_its_effect_is_found(books: Books) -> None:
    books.execute("DELETE FROM sent")
    assert books.found() == {"finished without its effect": [2]}


def test_each_step_is_taken_once_and_recorded(books: Books) -> None:
    books.want(4, "stepped")
    books.execute(FINISH, 4, 2)
    books.execute("INSERT INTO effects VALUES (4, 2)")
    for step in ("reserve", "charge", "ship"):
        books.execute("INSERT INTO stepped VALUES (4, %s, 1)", step)
        books.execute(
            "INSERT INTO job_steps (job_id, name, result, seconds, fencing_token) VALUES (4, %s, 'null', 0, 1)",
            step,
        )
    assert books.found() == {}
    books.execute("UPDATE job_steps SET fencing_token = 2 WHERE name = 'ship'")
    assert books.found() == {"took a step and did not record it so": [4, 4]}
    books.execute("DELETE FROM job_steps WHERE name = 'ship'")
    assert books.found() == {"took a step and did not record it so": [4]}
    books.execute("DELETE FROM stepped WHERE step = 'ship'")
    assert books.found() == {"finished without a step": [4]}
    books.execute("INSERT INTO stepped VALUES (4, 'charge', 2)")
    assert books.found()["took a step twice"] == [4]


def test_a_claim_before_the_commit_or_the_due_time_is_found(books: Books) -> None:
    books.execute("UPDATE finished_jobs SET scheduled_at = %s WHERE id = 1", LATER)
    books.execute("UPDATE finished_jobs SET claimed_at = now() - interval '1 hour' WHERE id = 2")
    assert books.found() == {"claimed before its commit": [2], "claimed before its time": [1, 2]}


def test_a_job_in_the_wrong_final_state_is_found(books: Books) -> None:
    books.want(4, "settle")
    books.execute(BURY, 4)
    books.want(5, "doomed")
    books.execute(FINISH, 5, 1)
    books.execute("INSERT INTO sent VALUES (5, 1)")
    assert books.found() == {"dead and should not be": [4], "finished and should be dead": [5]}


def test_a_tick_has_one_job(books: Books) -> None:
    for name in ("a", "b"):
        books.execute(tables.SCHEDULE, name, 0)
    books.execute("UPDATE finished_jobs SET tag = 'cron:a'")
    assert books.found() == {"ticked, and ended other than once": [0, 0]}
    books.execute("UPDATE finished_jobs SET tag = 'cron:b' WHERE id = 2")
    assert books.found() == {}


def test_a_restarted_producer_creates_no_duplicate_schedules(books: Books) -> None:
    for _ in range(2):
        producer._schedule(books.connection, Random(7))
    assert books.connection.execute("SELECT FROM crons").rowcount == 2


def test_a_cancelled_job_ends_as_cancelled(books: Books) -> None:
    books.execute("INSERT INTO cancelled VALUES (1), (3)")
    assert books.found() == {"cancelled, and ended otherwise": [1, 3], "cancelled, and took effect": [1]}
    books.execute("UPDATE dead_jobs SET reason = 'cancelled'")
    books.execute("DELETE FROM cancelled WHERE job_id = 1")
    assert books.found() == {}


def test_an_idempotency_key_has_one_job(books: Books) -> None:
    books.execute("INSERT INTO once VALUES ('a', 1), ('a', 1), ('b', 2)")
    assert books.found() == {}
    books.execute("INSERT INTO once VALUES ('b', 1)")
    assert books.found() == {"staged twice under one idempotency key": [1, 2]}


def test_a_job_delivered_before_its_predecessor_ended_is_found(books: Books) -> None:
    books.execute("INSERT INTO job_edges (child_id, parent_id, awaited_id, state) VALUES (2, 1, 1, 'met')")
    begin = "INSERT INTO witness (job_id, queue, change) VALUES (1, 'mail', 1)"
    books.execute(f"{begin}, (1, 'mail', -1), (2, 'mail', 1), (2, 'mail', -1)")
    assert books.found() == {}
    books.execute("DELETE FROM witness WHERE job_id = 1")
    books.execute(f"{begin}, (1, 'mail', -1)")
    assert books.found() == {"delivered before a job that it waited for had ended": [2]}
    books.execute("DELETE FROM witness")
    books.execute("UPDATE job_edges SET state = 'waiting'")
    assert books.found() == {"still waits for a job": [2]}


def test_a_job_may_die_for_a_job_that_it_waited_for(books: Books) -> None:
    books.want(4, "follow")
    books.execute(BURY, 4)
    books.execute("INSERT INTO job_edges (child_id, parent_id, awaited_id, state) VALUES (4, 3, 3, 'idle')")
    assert books.found() == {"dead and should not be": [4]}
    books.execute("UPDATE dead_jobs SET reason = 'cancelled' WHERE id = 4")
    assert books.found() == {}


BEGIN = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery, key)
SELECT %s, 'soak', '[]', '{}', %s, 0, now(), now(), 1, %s
"""


@pytest.mark.parametrize(
    ("queue", "key", "most", "found"),
    [
        ("calls", None, 5, "ran beyond the limit of the queue"),
        ("calls", "acme", 2, "ran beyond the limit of the key"),
        ("ordered", "acme", 1, "ran beyond the limit of the key"),
    ],
)
def test_no_more_jobs_run_at_a_time_than_a_limit(
    books: Books, queue: str, key: str | None, most: int, found: str
) -> None:
    for job_id in range(10, 10 + most):
        books.execute(BEGIN, job_id, queue, key)
    # One ends, another one waits for its next attempt, and two others begin.
    books.execute("DELETE FROM inflight_jobs WHERE id = 10")
    books.execute(BEGIN, 20, queue, key)
    books.execute("UPDATE inflight_jobs SET next_run_at = now() WHERE id = 20")
    books.execute(BEGIN, 21, queue, key)
    assert books.found() == {}

    books.execute("UPDATE inflight_jobs SET next_run_at = NULL WHERE id = 20")

    assert books.found() == {found: [20]}


def test_a_start_during_the_pause_of_its_key_is_found(books: Books) -> None:
    tables.calm(books.connection)
    books.execute(BEGIN, 10, "mail", tables.HELD)
    assert books.found() == {}
    books.execute("UPDATE calmed SET at = now() + interval '1 hour'")
    assert books.found() == {"begun though its key was paused": [10]}


def test_a_superseded_job_with_an_effect_or_no_replacement_is_found(books: Books) -> None:
    for job_id, stands in ((4, 1), (5, 3), (6, 99), (7, 1)):
        books.want(job_id, "settle")
        books.execute(FINISH, job_id, 0)
        books.execute("UPDATE finished_jobs SET superseded_by = %s WHERE id = %s", stands, job_id)
    books.execute("INSERT INTO effects VALUES (7, 0)")
    assert books.found() == {"gave way to nothing": [6], "gave way and took effect": [7]}


def test_a_confirmed_commit_that_was_forgotten_is_found(books: Books) -> None:
    assert books.found(1, 6) == {"confirmed and forgotten": [6]}


def test_an_audit_breach_or_an_ended_process_fails_the_soak() -> None:
    assert Verdict({"lost": []}, [], {"worker 1 ended": 0}).holds
    assert not Verdict({"lost": [1]}, [], {}).holds
    assert not Verdict({}, ["1 job in two tables"], {}).holds
    assert not Verdict({}, [], {"worker 1 ended": 1}).holds


def test_the_last_line_of_a_journal_may_be_cut_short(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("1 2\n3\n4 5")
    assert read([journal]) == [1, 2, 3]


def test_the_summary_names_what_was_done_and_found(books: Books) -> None:
    books.want(4, "send")
    audited = Report(counts={}, breaches=(Breach("once", "in two tables", 1, (1,)),), redis_asked=True)
    result = report.Result(
        seed=7,
        load=1,
        seconds=2,
        windows=1,
        drained_seconds=2,
        jobs=tables.counts(books.connection),
        faults=Counter({("worker", Kind.KILL): 3}),
        survived={},
        coverage={"worker killed": Counter(claimed=2)},
        verdict=judge(books.connection, [], lines(audited.breaches), {}),
        series={},
        growth=[],
    )
    summary = result.as_json()
    assert summary["ok"] is False
    assert summary["faults"] == {"worker killed": 3}
    assert summary["coverage"] == {"worker killed": dict.fromkeys(LETTERS, 0) | {"claimed": 2}}
    assert summary["found"]["lost"] == [4]
    assert summary["breaches"] == ["1 in two tables"]
    assert summary["jobs_per_second"] == 0.5


def test_jobs_that_hold_are_forgotten(books: Books) -> None:
    books.execute(history.LOG)
    books.want(4, "send")
    books.execute(BURY, 4)
    books.execute("INSERT INTO once VALUES ('a', 1)")
    books.execute(
        "INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (1, 1, 'a', 'dead')"
    )
    books.execute(tables.SCHEDULE, "a", 0)
    emit(books.connection, "an event", None)
    stage(books.connection, "soak.settle", idempotency_key="a")
    books.execute("DELETE FROM staged_jobs")

    tables.forget(books.connection)

    assert set(tables.counts(books.connection).values()) == {0}
    assert books.found() == {}
    assert history.read(books.connection, Notes()).letters == []
    assert books.connection.execute("SELECT FROM job_events").rowcount == 0
    # The leader deletes these.
    assert idempotency.delete_expired(books.connection, 10) == 1


def test_nothing_passes_a_closed_gate(books: Books, database_url: str) -> None:
    books.execute("SET lock_timeout = '100ms'")
    with (
        closing(postgres.connect(database_url, "test")) as soak,
        tables.closed_gate(soak),
        pytest.raises(LockNotAvailable),
        tables.passing(books.connection),
    ):
        pass
    with tables.passing(books.connection), tables.passing(books.connection):
        pass


def test_migrations_without_end_stay_below_the_most_columns_of_a_table(books: Books) -> None:
    columns = "SELECT max(attnum) FROM pg_attribute WHERE attrelid = 'staged_jobs'::regclass"
    for number in range(100):
        books.execute(f"ALTER TABLE staged_jobs ADD COLUMN filler{number} text")
        books.execute(f"ALTER TABLE staged_jobs DROP COLUMN filler{number}")
    books.execute(MIGRATE.replace("< 100", "< 200"))
    before = tables.value(books.connection, columns)
    for name in ("soaked", "soak", "soaked"):
        books.execute(MIGRATE)
        there = f"SELECT count(*) FROM pg_attribute WHERE attrelid = 'staged_jobs'::regclass AND attname = '{name}'"
        assert tables.value(books.connection, there) == 1
    assert tables.value(books.connection, columns) == before

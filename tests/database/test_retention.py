"""Days of finished jobs that are no longer kept: `drain run --keep-days` and `drain prune`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from time import monotonic

import psycopg
import pytest
from click.testing import CliRunner, Result

from drain import metrics
from drain.__main__ import main
from drain.audit import audit
from drain.config import Settings
from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer import retention
from drain.enqueuer.daemon import Daemon
from drain.enqueuer.pacer import Pacer
from drain.enqueuer.retention import Retention
from drain.errors import ConfigError, DrainError
from drain.pipeline import runs
from drain.tables import finished
from drain.tables.finished import Day, Dropped
from tests.database.test_partitions import A_MOMENT_SECONDS, INSERT, noon, partition_of, where
from tests.flows import flows
from tests.helpers import NAMESPACE, query, wait_until
from tests.hostility import OWNER, Place
from tests.poolers import SmallPooler

JOBS = 3


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with postgres.connect(database_url, "tests") as opened:
        yield opened


@pytest.fixture
def today(connection: Connection) -> date:
    return finished.today(connection)


def make(database_url: str, day: date, more: str = "", *, bounds: tuple[date, date] | None = None) -> None:
    begin, end = bounds or (day, day + timedelta(days=1))
    query(
        database_url,
        f"CREATE TABLE {partition_of(day)} PARTITION OF finished_jobs "
        f"FOR VALUES FROM ('{begin} 00:00+00') TO ('{end} 00:00+00') {more}",
    )


def finish(database_url: str, day: date, first: int) -> None:
    query(database_url, INSERT, first, first + JOBS - 1, noon(day))


@pytest.fixture
def days(database_url: str, today: date) -> dict[int, date]:
    """The days up to today that hold jobs, by how long ago they are; that of 3 days ago has no partition."""
    dates = {ago: today - timedelta(days=ago) for ago in range(5)}
    for ago, day in dates.items():
        if ago not in (0, 3):
            make(database_url, day)
        finish(database_url, day, 1 + 100 * ago)
    query(database_url, "SELECT setval('staged_jobs_id_seq', 1000)")
    return dates


def kept(database_url: str, days: dict[int, date]) -> list[int]:
    """How long ago the days are whose jobs are still there; each has all of its jobs."""
    ids = list(where(database_url))
    found = [ago for ago in days if 1 + 100 * ago in ids]
    assert len(ids) == JOBS * len(found)
    return found


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [0, 1]), (2, [0, 1, 2]), (3, [0, 1, 2, 3]), (4, [0, 1, 2, 3, 4])]
)
def test_today_and_the_given_number_of_days_are_kept(
    database_url: str, connection: Connection, days: dict[int, date], keep: int, left: list[int]
) -> None:
    # The bounds are UTC's, wherever the session is.
    connection.execute("SET timezone = 'Pacific/Kiritimati'")
    gone = list(retention.prune(connection, keep))
    assert kept(database_url, days) == left
    # Those that have a partition first.
    assert sorted(gone) == [Dropped(days[ago], JOBS) for ago in (4, 3, 2) if ago not in left]
    assert query(database_url, f"SELECT to_regclass('{partition_of(days[4])}') IS NULL") == [(keep < 4,)]


def test_the_leader_drops_one_day_at_a_time_and_logs_and_counts_it(
    database_url: str, connection: Connection, days: dict[int, date], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = metrics.DROPPED_DAYS._value.get()
    chore = Retention(connection, 1)
    assert [chore.run_once() for _ in range(5)] == [1, 1, 1, 0, 0]
    assert kept(database_url, days) == [0, 1]
    assert metrics.DROPPED_DAYS._value.get() == before + 3
    said = [record.message for record in caplog.records if "dropped" in record.message]
    assert said[0] == f"dropped finished jobs of {days[4]}: 3 jobs; --keep-days=1"
    # The next look is in a minute.
    make(database_url, days[4])
    assert chore.run_once() == 0


def test_an_audit_still_passes_after_a_drop_and_dead_jobs_stay(
    database_url: str, connection: Connection, days: dict[int, date]
) -> None:
    query(
        database_url,
        "INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "reason, explanation, died_at) VALUES (900, 'm.f', '[]', '{}', 'mail', 0, now(), now(), 'failed', 'x', "
        "now() - interval '1 year')",
    )
    query(
        database_url,
        "INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (401, 9, 'w', 'finished')",
    )
    list(retention.prune(connection, 1))
    assert audit(connection, patience_seconds=0).breaches == ()
    assert query(database_url, "SELECT id FROM dead_jobs") == [(900,)]
    assert query(database_url, "SELECT id FROM stale_finishes") == [(401,)]
    assert finished.dropped_up_to(connection) == (days[1], 400 + JOBS)


@pytest.mark.parametrize(
    "use", ["SELECT FROM finished_jobs", "LOCK TABLE finished_jobs IN ROW EXCLUSIVE MODE"]
)
def test_a_day_in_use_stays_for_now_without_a_long_wait(
    database_url: str,
    connection: Connection,
    days: dict[int, date],
    use: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pacer, "is_due", lambda _: True)
    chore = Retention(connection, 3)
    with psycopg.connect(database_url) as user:
        user.execute(use.encode())
        began = monotonic()
        assert chore.run_once() == 0
        assert monotonic() - began < A_MOMENT_SECONDS
        # Shorter than the wait for the lock, and long enough for the statement that ends it.
        connection.execute("SET statement_timeout = '60ms'")
        assert chore.run_once() == 0
        connection.execute("SET statement_timeout = 0")
        with pytest.raises(DrainError, match="in use by another transaction"):
            list(retention.prune(connection, 3, patience=0.0))
        # The lock that was asked for is in nobody's way.
        finish(database_url, days[0], 51)
    query(database_url, "DELETE FROM finished_jobs WHERE id BETWEEN 51 AND 60")
    assert chore.run_once() == 1
    assert kept(database_url, days) == [0, 1, 2, 3]


def test_nothing_is_dropped_while_an_archive_is_written(
    database_url: str, connection: Connection, days: dict[int, date]
) -> None:
    with postgres.connect(database_url, "drain archive") as archiving:
        assert finished.try_to_archive(archiving)
        assert finished.drop_old_day(connection, 1) is None
        result = prune(database_url, "--keep-days", "1", "--yes")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "`drain archive` or another `drain prune` is running" in result.stderr
    assert kept(database_url, days) == list(days)


def test_a_pooler_that_shares_sessions_never_keeps_the_lock(
    database_url: str, connection: Connection, days: dict[int, date]
) -> None:
    with SmallPooler(database_url, "transaction") as pooler:
        result = prune(pooler.url, "--keep-days", "1", "--yes")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "is a pooler that shares sessions" in result.stderr
        with pytest.raises(ConfigError, match="shares sessions"), runs.exclusive(pooler.url, "run"):
            raise AssertionError("the lock of a run stays behind")
        assert finished.try_to_archive(connection)
    assert kept(database_url, days) == list(days)


def test_a_table_that_is_not_one_of_our_days_is_left_alone(
    database_url: str, connection: Connection, today: date
) -> None:
    year = (today - timedelta(days=400), today - timedelta(days=30))
    make(database_url, year[0], bounds=year)
    other = today - timedelta(days=20)
    make(database_url, other)
    query(database_url, f"ALTER TABLE {partition_of(other)} RENAME TO mine")
    divided = today - timedelta(days=10)
    make(database_url, divided, "PARTITION BY RANGE (id)")
    query(database_url, f"CREATE TABLE part PARTITION OF {partition_of(divided)} DEFAULT")
    for first, day in enumerate((year[0], other, divided)):
        finish(database_url, day, 1 + 100 * first)
    assert finished.drop_old_day(connection, 1) is None
    assert len(where(database_url)) == 3 * JOBS


def test_a_job_whose_transaction_is_open_is_counted_with_its_day(
    database_url: str, connection: Connection, days: dict[int, date]
) -> None:
    query(
        database_url,
        "ALTER FUNCTION drain_drop_old_day_of(regclass, regclass, integer) SET lock_timeout = '60s'",
    )
    with psycopg.connect(database_url) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute(INSERT, (451, 451, noon(days[4])))
        dropped = pool.submit(finished.drop_old_day, connection, 1)
        wait_until(lambda: query(database_url, "SELECT FROM pg_locks WHERE NOT granted"))
        writer.commit()
        assert dropped.result() == Dropped(days[4], JOBS + 1)
    assert finished.dropped_up_to(connection) == (days[3], 451)


def test_a_drop_under_an_old_snapshot_is_refused(
    database_url: str, connection: Connection, days: dict[int, date]
) -> None:
    with (
        pytest.raises(psycopg.errors.RaiseException, match="read committed"),
        postgres.transaction(connection, psycopg.IsolationLevel.REPEATABLE_READ),
    ):
        finished.drop_old_day(connection, 1)
    assert kept(database_url, days) == list(days)


def test_a_lost_connection_raises_an_error_in_the_leader(database_url: str, connection: Connection) -> None:
    query(database_url, "SELECT pg_terminate_backend(%s)", connection.info.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        Retention(connection, 1).run_once()


@pytest.mark.parametrize("keep", [0, -1, None])
def test_today_and_yesterday_are_never_dropped(
    database_url: str, connection: Connection, days: dict[int, date], keep: int | None
) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="keeps 1 to 36500 days"):
        finished.drop_old_day(connection, keep)  # type: ignore[arg-type]
    assert kept(database_url, days) == list(days)


def test_many_rows_without_a_partition_are_dropped_in_slices(
    database_url: str, connection: Connection, today: date
) -> None:
    day = today - timedelta(days=2)
    query(database_url, INSERT, 1, 10_001, noon(day))
    assert finished.drop_old_day(connection, 1) == Dropped(day, 10_000)
    assert finished.drop_old_day(connection, 1) == Dropped(day, 1)


def test_an_enqueuer_needs_only_the_minimal_rights_to_drop_days(
    place: Place, redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.connected("inspection") as inspection:
        day = finished.today(inspection) - timedelta(days=2)
    make(place.url, day)
    query(place.url, f"ALTER TABLE {partition_of(day)} OWNER TO {OWNER}")
    settings = Settings(database_url=place.url_of("enqueuer"), redis_url=redis_url, namespace=NAMESPACE)
    Daemon(settings, keep_days=2).run_once()
    assert query(place.url, f"SELECT to_regclass('{partition_of(day)}') IS NULL") == [(False,)]
    query(place.url, "REVOKE EXECUTE ON FUNCTION drain_drop_old_day(integer) FROM drain_enqueuer")
    monkeypatch.setattr(Pacer, "is_due", lambda _: True)
    with place.connected("enqueuer") as leader:
        chore = Retention(leader, 1)
        assert [chore.run_once(), chore.run_once()] == [0, 0]
    assert caplog.text.count("permission denied for function drain_drop_old_day") == 1
    query(place.url, "GRANT EXECUTE ON FUNCTION drain_drop_old_day(integer) TO drain_enqueuer")
    Daemon(settings, keep_days=1).run_once()
    assert query(place.url, f"SELECT to_regclass('{partition_of(day)}') IS NULL") == [(True,)]


def test_run_takes_the_number_of_days(database_url: str, redis_url: str, days: dict[int, date]) -> None:
    env = {"DRAIN_DATABASE_URL": database_url, "DRAIN_REDIS_URL": redis_url, "DRAIN_KEEP_DAYS": "3"}
    for words, left in (([], 4), (["--keep-days", "1"], 2)):
        assert CliRunner().invoke(main, ["run", "--once", *words], env=env).exit_code == 0
        assert len(kept(database_url, days)) == left


def test_run_keeps_thirty_days_unless_told_otherwise(database_url: str, redis_url: str, today: date) -> None:
    ages = {30: 1, 31: 101}
    for ago, first in ages.items():
        make(database_url, today - timedelta(days=ago))
        finish(database_url, today - timedelta(days=ago), first)
    query(database_url, "SELECT setval('staged_jobs_id_seq', 1000)")
    env = {"DRAIN_DATABASE_URL": database_url, "DRAIN_REDIS_URL": redis_url, "DRAIN_KEEP_DAYS": None}
    for words, left in ((["--keep-days", "0"], [30, 31]), ([], [30])):
        assert CliRunner().invoke(main, ["run", "--once", *words], env=env).exit_code == 0
        ids = where(database_url)
        assert [ago for ago, first in ages.items() if first in ids] == left


def prune(database_url: str, *words: str, answer: str | None = None) -> Result:
    env = {"DRAIN_DATABASE_URL": database_url, "DRAIN_KEEP_DAYS": None}
    return CliRunner().invoke(main, ["prune", *words], env=env, input=answer)


def test_prune_previews_requires_confirmation_and_drops(database_url: str, days: dict[int, date]) -> None:
    shown = prune(database_url, "--keep-days", "2", "--dry-run").stdout
    assert shown == f"{days[4]}  3 jobs would be dropped\n{days[3]}  3 jobs would be dropped\n"
    refused = prune(database_url, "--keep-days", "2")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == (
        "Error: 2 days with 6 finished jobs would be dropped permanently; confirm with --yes, or preview "
        "with --dry-run\n"
    )
    assert kept(database_url, days) == list(days)

    assert prune(database_url, "--keep-days", "2", "--yes").stdout == (
        f"{days[4]}  3 jobs dropped\n{days[3]}  3 jobs dropped\n"
    )
    assert json.loads(prune(database_url, "--keep-days", "1", "--yes", "--json").stdout) == [
        {"day": str(days[2]), "jobs": 3}
    ]
    assert prune(database_url, "--keep-days", "1").stdout == "nothing to drop\n"
    assert prune(database_url, "--keep-days", "0").exit_code == 2
    assert prune(database_url).exit_code == 2


@pytest.mark.parametrize(("answer", "left"), [("y\n", [0, 1]), ("n\n", [0, 1, 2, 3, 4])])
def test_prune_asks_on_a_terminal(
    database_url: str, days: dict[int, date], answer: str, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    asked = prune(database_url, "--keep-days", "1", answer=answer)
    assert (
        f"drop 3 days with 9 finished jobs, from {days[4]} to {days[2]}, permanently? [y/N]" in asked.output
    )
    assert kept(database_url, days) == left


@pytest.mark.parametrize("how", ["drop_old_day", "remove_day"])
def test_a_day_stays_until_the_jobs_that_wait_for_its_jobs_are_unblocked(
    database_url: str, redis_url: str, connection: Connection, today: date, how: str
) -> None:
    """No leader has run since their predecessor finished."""
    day = Day(partition_of(today - timedelta(days=2)), today - timedelta(days=2))
    make(database_url, day.date)
    with flows(database_url, redis_url) as jobs:
        parent = jobs.stage()
        child = jobs.stage(parent)
        jobs.finish(parent)
        query(database_url, "UPDATE finished_jobs SET finished_at = %s", noon(day.date))

        def drop() -> object:
            if how == "drop_old_day":
                return finished.drop_old_day(connection, 1)
            return finished.remove_day(connection, day, finished.checksum(connection, day))

        with pytest.raises(
            psycopg.errors.LockNotAvailable, match=f"jobs still wait for jobs of .*{day.partition}"
        ):
            drop()
        if how == "drop_old_day":
            why = "^jobs still wait for jobs of .*: the other days were not dropped; run this again"
            with pytest.raises(DrainError, match=why):
                list(retention.prune(connection, 1, patience=0.0))
        jobs.look()
        jobs.look()
        assert jobs.state(child) == "waiting"
        assert drop()
        jobs.look(walk=True)
        assert jobs.states(parent, child) == ["absent", "waiting"]

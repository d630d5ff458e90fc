"""The partitions of `finished_jobs`: made before their day, dropped whole, and nobody who finishes a job waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from time import monotonic

import psycopg
import pytest

from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer.housekeeping import DailyPartitions
from drain.enqueuer.pacer import Pacer
from drain.tables import finished
from drain.tables.finished import OTHER, Checksum, Day
from tests.helpers import query
from tests.inprocess_worker import Workshop

TODAY = date.min
INSERT = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token)
SELECT id, 'tests.act', '[]', '{}', 'mail', 0, at, at, at, at, at, 1, 1
FROM generate_series(%s::bigint, %s::bigint) AS id, LATERAL (SELECT %s::timestamptz AS at) AS time
"""
# The longest that anybody may wait for a lock here, many times over.
A_MOMENT_SECONDS = 2.0


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever day it was when the tests began."""
    monkeypatch.setattr(sys.modules[__name__], "TODAY", datetime.now(UTC).date())


def ahead(number: int) -> date:
    return TODAY + timedelta(days=number)


def noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


def finish(database_url: str, first: int, last: int, day: date | None = None) -> None:
    query(database_url, INSERT, first, last, noon(day or TODAY))


def drop(database_url: str, *dates: date) -> None:
    for day in dates:
        query(database_url, f"DROP TABLE finished_jobs_{day:%Y%m%d}")


def where(database_url: str) -> dict[int, str]:
    return dict(query(database_url, "SELECT id, tableoid::regclass::text FROM finished_jobs ORDER BY id"))


def partition_of(day: date) -> str:
    return f"finished_jobs_{day:%Y%m%d}"


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with postgres.connect(database_url, "tests") as opened:
        yield opened


def dates(connection: Connection) -> list[date]:
    return [day.date for day in finished.days(connection)]


def test_the_schema_creates_partitions_for_today_and_the_next_days(connection: Connection) -> None:
    assert dates(connection) == [ahead(number) for number in range(4)]


def test_the_leader_creates_upcoming_days_and_checks_once_a_minute(connection: Connection) -> None:
    for number in (2, 3):
        connection.execute(f"DROP TABLE {partition_of(ahead(number))}".encode())
    maker = DailyPartitions(connection)
    assert maker.run_once() == 2
    assert dates(connection) == [ahead(number) for number in range(4)]
    connection.execute(f"DROP TABLE {partition_of(ahead(3))}".encode())
    assert maker.run_once() == 0


def test_a_day_ends_at_midnight_utc_in_any_session_time_zone(
    database_url: str, connection: Connection
) -> None:
    connection.execute("SET timezone = 'Pacific/Kiritimati'")
    connection.execute(f"DROP TABLE {partition_of(ahead(1))}".encode())
    assert finished.make_days(connection, 1) == 1
    midnight = datetime(TODAY.year, TODAY.month, TODAY.day, tzinfo=UTC) + timedelta(days=1)
    query(database_url, INSERT, 1, 1, midnight - timedelta(microseconds=1))
    query(database_url, INSERT, 2, 2, midnight)
    assert where(database_url) == {1: partition_of(TODAY), 2: partition_of(ahead(1))}
    assert finished.today(connection) == datetime.now(UTC).date()


def test_a_job_finishes_even_without_any_partition(shop: Workshop, database_url: str) -> None:
    drop(database_url, *(ahead(number) for number in range(4)))
    job_id = shop.delivered(lambda: None)
    shop.work(job_id)
    assert where(database_url) == {job_id: OTHER}


def test_rows_without_a_partition_move_when_it_is_made(database_url: str, connection: Connection) -> None:
    drop(database_url, TODAY)
    finish(database_url, 1, 5)
    finish(database_url, 6, 6, ahead(-1))
    before = query(database_url, "SELECT * FROM finished_jobs ORDER BY id")
    assert finished.make_days(connection, 3) == 1
    assert where(database_url) == dict.fromkeys(range(1, 6), partition_of(TODAY)) | {6: OTHER}
    assert query(database_url, "SELECT * FROM finished_jobs ORDER BY id") == before


def test_too_many_rows_to_move_quickly_stay_in_place(database_url: str, connection: Connection) -> None:
    drop(database_url, TODAY, ahead(1))
    finish(database_url, 1, 10_001)
    assert finished.make_days(connection, 3) == 1
    assert dates(connection) == [ahead(number) for number in range(1, 4)]
    query(database_url, "DELETE FROM finished_jobs WHERE id = 1")
    assert finished.make_days(connection, 3) == 1
    assert set(where(database_url).values()) == {partition_of(TODAY)}


@pytest.mark.parametrize(
    "use", ["SELECT FROM finished_jobs_other", "LOCK TABLE finished_jobs_other IN ROW EXCLUSIVE MODE"]
)
def test_creating_a_day_gives_up_quickly_while_its_rows_are_in_use(
    database_url: str, connection: Connection, use: str
) -> None:
    drop(database_url, TODAY, ahead(1))
    with psycopg.connect(database_url) as user:
        user.execute(use.encode())
        began = monotonic()
        assert finished.make_days(connection, 3) == 0
        assert monotonic() - began < A_MOMENT_SECONDS
        finish(database_url, 1, 1)
    # Neither of the two days is there by half.
    assert query(database_url, "SELECT to_regclass(%s)", partition_of(TODAY)) == [(None,)]
    assert finished.make_days(connection, 3) == 2
    assert where(database_url) == {1: partition_of(TODAY)}


def test_concurrent_sessions_create_each_day_exactly_once(database_url: str) -> None:
    drop(database_url, *(ahead(number) for number in range(4)))
    barrier = threading.Barrier(6)

    def make(_number: int) -> int:
        with postgres.connect(database_url, "tests") as opened:
            barrier.wait()
            return sum(finished.make_days(opened, 3) for _ in range(5))

    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(make, range(6)))
    assert sum(made) == 4


def test_a_failure_to_create_days_is_logged_once_and_jobs_still_finish(
    database_url: str,
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pacer, "is_due", lambda _: True)
    drop(database_url, TODAY)
    # Twice under one id: the day's primary key refuses them.
    finish(database_url, 1, 1)
    query(database_url, "ALTER TABLE finished_jobs_other DROP CONSTRAINT finished_jobs_other_pkey")
    finish(database_url, 1, 1)
    maker = DailyPartitions(connection)
    assert [maker.run_once(), maker.run_once()] == [0, 0]
    assert len([record for record in caplog.records if "partitions for the next days" in record.message]) == 1
    finish(database_url, 2, 2)
    assert set(where(database_url).values()) == {OTHER}


def test_closed_days_are_listed_oldest_first(database_url: str, connection: Connection) -> None:
    assert finished.closed_days(connection) == []
    query(
        database_url,
        f"CREATE TABLE {partition_of(ahead(-2))} PARTITION OF finished_jobs "
        f"FOR VALUES FROM ('{ahead(-2)} 00:00+00') TO ('{ahead(-1)} 00:00+00')",
    )
    for number in (-4, -1):
        finish(database_url, 10 - number, 10 - number, ahead(number))
    drop(database_url, TODAY)
    finish(database_url, 1, 1, TODAY)
    # The bounds are UTC's, wherever the session is, and however long its days are.
    connection.execute("SET timezone = 'Pacific/Kiritimati'")
    four, two, one = Day(OTHER, ahead(-4)), Day(partition_of(ahead(-2)), ahead(-2)), Day(OTHER, ahead(-1))
    assert finished.closed_days(connection) == [four, two, one]
    assert finished.closed_days(connection, keep=1) == [four, two]
    assert finished.closed_days(connection, keep=4) == []


@pytest.fixture(params=["a partition", "rows without one"])
def day(request: pytest.FixtureRequest, database_url: str) -> Day:
    """Ten rows of one day."""
    if request.param == "rows without one":
        finish(database_url, 100, 100, ahead(-2))
        finish(database_url, 1, 10, ahead(-1))
        return Day(OTHER, ahead(-1))
    finish(database_url, 1, 10)
    return Day(partition_of(TODAY), TODAY)


def test_a_checksum_covers_every_column_regardless_of_row_order(
    database_url: str, connection: Connection, day: Day
) -> None:
    before = finished.checksum(connection, day)
    assert before.rows == 10
    connection.execute("SET timezone = 'Asia/Kolkata'")
    connection.execute("SET datestyle = 'German'")
    assert finished.checksum(connection, day) == before
    connection.execute("RESET datestyle")
    for change, back in [
        ("tag = 'x'", "tag = NULL"),
        ("job_args = '[1]'", "job_args = '[]'"),
        (
            "staged_at = staged_at + interval '1 microsecond'",
            "staged_at = staged_at - interval '1 microsecond'",
        ),
    ]:
        query(database_url, f"UPDATE finished_jobs SET {change} WHERE id = 3")
        assert finished.checksum(connection, day) != before
        # In another place of the table, as an update leaves it.
        query(database_url, f"UPDATE finished_jobs SET {back} WHERE id = 3")
        assert finished.checksum(connection, day) == before


def test_a_day_is_removed_if_its_rows_are_those_that_were_counted(
    database_url: str, connection: Connection, day: Day
) -> None:
    assert finished.remove_day(connection, day, finished.checksum(connection, day))
    assert not [id_ for id_ in where(database_url) if id_ <= 10]
    assert day not in finished.days(connection)
    assert where(database_url) == ({100: OTHER} if day.partition == OTHER else {})


@pytest.mark.parametrize(
    "change",
    ["added", "UPDATE finished_jobs SET tag = 'x' WHERE id = 3", "DELETE FROM finished_jobs WHERE id = 3"],
)
def test_a_day_whose_rows_changed_is_left_alone(
    database_url: str, connection: Connection, day: Day, change: str
) -> None:
    expected = finished.checksum(connection, day)
    if change == "added":
        finish(database_url, 11, 11, day.date)
    else:
        query(database_url, change)
    before = where(database_url)
    assert not finished.remove_day(connection, day, expected)
    assert not finished.remove_day(connection, day, Checksum(0, 0))
    assert where(database_url) == before


def test_an_uncommitted_row_keeps_the_partition(database_url: str, connection: Connection) -> None:
    """A drop that went by what it can see would take the row along."""
    finish(database_url, 1, 10)
    day = Day(partition_of(TODAY), TODAY)
    expected = finished.checksum(connection, day)
    with psycopg.connect(database_url) as late:
        late.execute(INSERT.encode(), (11, 11, noon(TODAY)))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            finished.remove_day(connection, day, expected)
        late.commit()
    assert not finished.remove_day(connection, day, expected)
    assert len(where(database_url)) == 11


def test_an_uncommitted_row_is_not_deleted_with_the_others(database_url: str, connection: Connection) -> None:
    finish(database_url, 1, 10, ahead(-1))
    day = Day(OTHER, ahead(-1))
    with psycopg.connect(database_url) as late:
        late.execute(INSERT.encode(), (11, 11, noon(ahead(-1))))
        assert finished.remove_day(connection, day, finished.checksum(connection, day))
        late.commit()
    assert where(database_url) == {11: OTHER}


def test_a_reader_postpones_the_drop_without_a_long_wait(database_url: str, connection: Connection) -> None:
    finish(database_url, 1, 10)
    day = Day(partition_of(TODAY), TODAY)
    expected = finished.checksum(connection, day)
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT FROM finished_jobs")
        began = monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            finished.remove_day(connection, day, expected)
        assert monotonic() - began < A_MOMENT_SECONDS
        # The lock that was asked for in vain is in nobody's way.
        finish(database_url, 11, 11, ahead(1))
    assert finished.remove_day(connection, day, expected)
    assert where(database_url) == {11: partition_of(ahead(1))}


def test_only_one_of_two_concurrent_drops_succeeds(database_url: str) -> None:
    finish(database_url, 1, 10)
    day = Day(partition_of(TODAY), TODAY)
    barrier = threading.Barrier(2)

    def act(_number: int) -> bool:
        with postgres.connect(database_url, "tests") as opened:
            expected = finished.checksum(opened, day)
            barrier.wait()
            try:
                return finished.remove_day(opened, day, expected)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                return False

    with ThreadPoolExecutor(2) as pool:
        dropped = list(pool.map(act, range(2)))
    assert dropped.count(True) <= 1
    assert bool(where(database_url)) == (True not in dropped)


def test_a_drop_under_an_old_snapshot_is_refused(database_url: str, connection: Connection) -> None:
    finish(database_url, 1, 10)
    day = Day(partition_of(TODAY), TODAY)
    expected = finished.checksum(connection, day)
    with (
        pytest.raises(psycopg.errors.RaiseException, match="read committed"),
        postgres.transaction(connection, psycopg.IsolationLevel.REPEATABLE_READ),
    ):
        finished.remove_day(connection, day, expected)


def test_only_one_session_holds_the_archive_lock(database_url: str, connection: Connection) -> None:
    with postgres.connect(database_url, "tests") as other:
        assert finished.try_to_archive(other)
        assert not finished.try_to_archive(connection)
    # The server may not have noticed yet that the other session has ended.
    assert finished.try_to_archive(connection)

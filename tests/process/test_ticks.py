"""Schedules tick: the leader stages one job for each tick, whichever leader dies where."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from drain import failpoints
from drain.audit.ticks import TicksCheck
from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer import ticker as ticker_module
from drain.enqueuer.daemon import Daemon
from drain.enqueuer.ticker import Ticker
from drain.failpoints import FailurePoint
from drain.tables import crons
from tests.helpers import environment, leading, query, wait_until

JOB = "m.report"


@contextmanager
def a_ticker(database_url: str) -> Iterator[Ticker]:
    with closing(postgres.connect(database_url, "tests")) as connection:
        yield Ticker(connection)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with closing(postgres.connect(database_url, "tests")) as opened:
        yield opened


def put(database_url: str, name: str = "report", cron: str = "* * * * *", **columns: Any) -> None:
    """Write a schedule by plain SQL."""
    given = {"name": name, "job_name": JOB, "cron": cron, **columns}
    places = ", ".join(["%s"] * len(given))
    query(database_url, f"INSERT INTO crons ({', '.join(given)}) VALUES ({places})", *given.values())


def minute(connection: Connection) -> datetime:
    (at,) = postgres.fetch_one(connection, "SELECT date_trunc('minute', now())")
    return at.astimezone(UTC)  # type: ignore[no-any-return]


def staged(database_url: str, name: str = "report") -> list[datetime]:
    """Times of the ticks of the jobs that were staged, in the order of the jobs' ids."""
    rows = query(
        database_url, "SELECT scheduled_at FROM staged_jobs WHERE tag = %s ORDER BY id", f"cron:{name}"
    )
    return [at.astimezone(UTC) for (at,) in rows]


def schedule(database_url: str, name: str = "report") -> dict[str, Any]:
    with closing(postgres.connect(database_url, "tests")) as connection:
        return next(row for row in crons.all_schedules(connection) if row["name"] == name)


def test_a_due_tick_stages_the_job_and_advances_the_schedule(
    database_url: str, connection: Connection
) -> None:
    now = minute(connection)
    options = '{"queue": "reports", "priority": 7, "max_attempts": 3, "key": "acme", "context": {"a": 1}}'
    put(database_url, job_args="[42]", job_kwargs='{"full": true}', options=options, next_tick_at=now)

    assert Ticker(connection).run_once() == 1

    ((job_id, *columns),) = query(
        database_url,
        "SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, max_attempts, key, context "
        "FROM staged_jobs",
    )
    assert columns[:-1] == [JOB, [42], {"full": True}, "reports", 7, now, "cron:report", 3, "acme"]
    assert datetime.fromisoformat(columns[-1].pop("tick")) == now
    assert columns[-1] == {"a": 1, "cron": "report"}
    row = schedule(database_url)
    assert (row["last_job_id"], row["last_tick_at"]) == (job_id, now)
    assert row["next_tick_at"] in (now + timedelta(minutes=1), now + timedelta(minutes=2))


def test_a_new_schedule_first_ticks_after_its_creation(database_url: str, connection: Connection) -> None:
    put(database_url, cron="0 3 * * *", timezone="Europe/Berlin")

    ticker = Ticker(connection)
    assert ticker.run_once() == 1
    assert ticker.run_once() == 0

    next_tick = schedule(database_url)["next_tick_at"]
    assert staged(database_url) == []
    assert timedelta(0) < next_tick - minute(connection) <= timedelta(days=1, hours=1)
    assert 0 < ticker.seconds_to_next() <= 25 * 3600


@pytest.mark.parametrize(("cron", "seconds"), [("* * * * *", 60), ("*/15 * * * * *", 15)])
def test_each_tick_is_staged_once_even_if_many_leaders_die(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, cron: str, seconds: int
) -> None:
    monkeypatch.setattr(ticker_module, "TICKS_PER_TRANSACTION", 17)
    step = timedelta(seconds=seconds)
    first = minute(connection) - 500 * step
    put(database_url, cron=cron, missed="all", next_tick_at=first)
    chance = random.Random(14)
    takeovers = 0
    while not staged(database_url) or schedule(database_url)["next_tick_at"] <= minute(connection):
        with a_ticker(database_url) as ticker, suppress_death():
            failpoints.set_hook(partial(die, ticker, chance))
            while ticker.run_once():
                pass
        takeovers += 1

    ticks = staged(database_url)
    assert ticks == [first + step * number for number in range(len(ticks))]
    assert len(ticks) >= 500
    assert takeovers >= 10


@contextmanager
def suppress_death() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError:
        pass
    finally:
        failpoints.set_hook(None)


def die(ticker: Ticker, chance: random.Random, _point: FailurePoint) -> None:
    if chance.random() < 0.3:
        postgres.break_off(ticker._connection)
        raise psycopg.OperationalError("killed")


def test_two_concurrent_tickers_stage_a_tick_once(database_url: str, connection: Connection) -> None:
    now = minute(connection)
    put(database_url, missed="all", next_tick_at=now - timedelta(minutes=3))
    counts = []

    def let_another_try(point: FailurePoint) -> None:
        failpoints.set_hook(None)
        with a_ticker(database_url) as other:
            counts.append(other.run_once())

    failpoints.set_hook(let_another_try)
    assert Ticker(connection).run_once() == 1

    assert counts == [0]
    assert len(set(staged(database_url))) == len(staged(database_url))


@pytest.mark.parametrize(("missed", "count"), [("last", 1), ("all", 180), ("none", 0)])
def test_missed_ticks_are_staged_by_the_rule_of_their_schedule(
    database_url: str, connection: Connection, missed: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    # Three whole hours with a tick a minute, and none since.
    hours = [minute(connection).replace(minute=0) - timedelta(hours=ago) for ago in (5, 4, 3)]
    cron = f"* {','.join(str(hour.hour) for hour in hours)} * * *"
    put(database_url, cron=cron, missed=missed, next_tick_at=hours[0])

    assert Ticker(connection).run_once() == 1

    ticks = staged(database_url)
    assert len(ticks) == count
    assert ticks[-1:] in ([], [hours[-1] + timedelta(minutes=59)])
    assert schedule(database_url)["next_tick_at"] > minute(connection)
    assert "schedule report missed its ticks from" in caplog.text


def test_a_schedule_that_skips_missed_ticks_still_stages_the_current_one(
    database_url: str, connection: Connection
) -> None:
    now = minute(connection)
    put(database_url, missed="none", next_tick_at=now - timedelta(minutes=90))

    Ticker(connection).run_once()

    assert len(staged(database_url)) == 1
    assert staged(database_url)[0] >= now


@pytest.mark.parametrize("missed", ["last", "all", "none"])
def test_a_schedule_of_seconds_loses_no_tick_when_the_leader_changes(
    database_url: str, connection: Connection, missed: str, caplog: pytest.LogCaptureFixture
) -> None:
    (now,) = postgres.fetch_one(connection, "SELECT date_trunc('second', now())")
    # The former leader has died 40 seconds ago.
    first = now.astimezone(UTC) - timedelta(seconds=40)
    put(database_url, cron="* * * * * *", missed=missed, next_tick_at=first)

    with a_ticker(database_url) as ticker:
        assert ticker.run_once() == 1

    ticks = staged(database_url)
    assert ticks == [first + timedelta(seconds=number) for number in range(len(ticks))]
    assert len(ticks) > 40
    assert schedule(database_url)["next_tick_at"] == ticks[-1] + timedelta(seconds=1)
    assert "missed its ticks" not in caplog.text


@pytest.mark.parametrize(("missed", "count"), [("last", 1), ("none", 1)])
def test_the_schedules_rule_decides_about_over_a_minute_of_missed_seconds(
    database_url: str, connection: Connection, missed: str, count: int
) -> None:
    put(database_url, cron="* * * * * *", missed=missed, next_tick_at=minute(connection) - timedelta(hours=3))

    assert Ticker(connection).run_once() == 1

    assert len(staged(database_url)) == count
    assert staged(database_url)[0] >= minute(connection) - timedelta(minutes=1)


def test_a_year_of_missed_ticks_is_staged_in_parts(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = minute(connection) - timedelta(days=365)
    put(database_url, missed="all", next_tick_at=first)
    put(database_url, "other", next_tick_at=minute(connection))
    ticker = Ticker(connection)

    assert ticker.run_once() == 1
    assert len(staged(database_url)) == ticker_module.TICKS_PER_TRANSACTION
    assert schedule(database_url)["next_tick_at"] == first + timedelta(minutes=1000)
    assert ticker.seconds_to_next() == 0


def test_a_schedule_that_cannot_be_staged_stops_no_other(
    database_url: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    now = minute(connection)
    put(database_url, "no zone", timezone="Europe/Berln", next_tick_at=now)
    put(database_url, "no line", cron="0 0 31 2 *")
    put(database_url, "no queue", options='{"queue": "a b"}', next_tick_at=now)
    put(database_url, "no number", options='{"priority": "high"}', next_tick_at=now)
    put(database_url, next_tick_at=now)

    ticker = Ticker(connection)
    assert ticker.run_once() == 5
    assert ticker.run_once() == 0

    assert len(staged(database_url)) == 1
    errors = {row["name"]: row["error"] for row in crons.all_schedules(connection) if row["error"]}
    assert sorted(errors) == ["no line", "no number", "no queue", "no zone"]
    assert "no time zone 'Europe/Berln'" in errors["no zone"]
    assert "queue_must_be_a_name_that_rq_can_carry" in errors["no queue"]
    assert caplog.text.count("stages no jobs until it is changed") == 4


def test_a_new_leader_tries_schedules_again_that_another_could_not_stage(
    database_url: str, connection: Connection
) -> None:
    put(database_url, next_tick_at=minute(connection), error="there is no time zone 'Mars/Base'")

    assert Ticker(connection).run_once() == 1

    assert len(staged(database_url)) == 1
    assert schedule(database_url)["error"] is None


def test_a_paused_schedule_does_not_tick(database_url: str, connection: Connection) -> None:
    put(database_url, next_tick_at=minute(connection) - timedelta(hours=1))
    assert crons.pause(connection, ["report"]) == ["report"]
    assert Ticker(connection).run_once() == 0

    assert crons.resume(connection, ["report"]) == ["report"]
    Ticker(connection).run_once()

    assert schedule(database_url)["next_tick_at"] > minute(connection)
    assert len(staged(database_url)) <= 1


def test_the_leader_does_not_wait_for_a_transaction_that_changes_a_schedule(
    database_url: str, connection: Connection
) -> None:
    put(database_url, next_tick_at=minute(connection))
    with psycopg.connect(database_url) as changing:
        changing.execute("UPDATE crons SET missed = 'all'")
        ticker = Ticker(connection)
        assert ticker.run_once() == 0
        # The leader's usual round comes first.
        assert ticker.seconds_to_next() > 1

    assert ticker.run_once() == 1


def test_times_are_compared_in_utc_whatever_the_sessions_zone(
    database_url: str, connection: Connection
) -> None:
    """Python compares times of one zone by what its clock shows, which is the same twice when summer ends."""
    connection.execute("SET timezone = 'America/New_York'")
    with connection.transaction():
        put(database_url, next_tick_at=datetime(2025, 11, 2, 5, 30, tzinfo=UTC))
        (due,) = crons.read_due(connection, 10)

    assert due.next_tick_at is not None
    assert due.next_tick_at.tzinfo is UTC


@pytest.mark.usefixtures("processes")
def test_the_leader_stages_a_tick_on_time(database_url: str, redis_url: str) -> None:
    with leading(environment(database_url, redis_url)):
        query(database_url, "INSERT INTO crons (name, job_name, cron) VALUES ('report', 'm.f', '0 3 * * *')")
        wait_until(lambda: schedule(database_url)["next_tick_at"])
        query(database_url, "UPDATE crons SET next_tick_at = now() + interval '0.3 s'")
        (moved,) = wait_until(lambda: query(database_url, "SELECT scheduled_at, moved_at FROM inflight_jobs"))

    assert moved[0] <= moved[1]


@pytest.mark.usefixtures("processes")
def test_a_schedule_of_seconds_has_one_job_a_second_under_two_leaders(
    database_url: str, redis_url: str, connection: Connection
) -> None:
    put(database_url, cron="* * * * * *")

    def ticks(least: int) -> list[datetime]:
        rows = query(database_url, "SELECT scheduled_at FROM inflight_jobs ORDER BY id")
        return [at for (at,) in rows] if len(rows) >= least else []

    for least in (3, 6):
        with leading(environment(database_url, redis_url)) as leader:
            found = wait_until(partial(ticks, least))
            leader.kill()
    assert found == [found[0] + timedelta(seconds=number) for number in range(len(found))]
    looked = TicksCheck(connection, 60)
    looked.look()
    looked.look()
    assert looked.breaches() == []


def test_drain_run_once_delivers_the_jobs_of_due_ticks(
    database_url: str, redis_url: str, connection: Connection
) -> None:
    from drain.config import Settings

    put(database_url, next_tick_at=minute(connection))
    settings = Settings(database_url=database_url, redis_url=redis_url, namespace="test")

    assert Daemon(settings).run_once() == 1

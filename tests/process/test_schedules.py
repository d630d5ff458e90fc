"""Schedules are written by applications, by workers, and by people."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import drain
from drain.__main__ import main
from drain.audit import audit
from drain.commands.work import _declare
from drain.config import Settings
from drain.database import postgres
from drain.enqueuer.ticker import Ticker
from drain.errors import StageError
from drain.jobs import registry, schedules
from drain.read import queries
from drain.tables import crons
from tests.helpers import PATIENCE_SECONDS, ROOT, drain_command, environment, query

DAILY = "0 3 * * *"


@pytest.fixture(autouse=True)
def an_empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


def report(day: str = "today") -> None:
    """Report."""


def all_of(database_url: str) -> dict[str, dict[str, Any]]:
    with closing(postgres.connect(database_url, "tests")) as connection:
        return {row["name"]: row for row in crons.all_schedules(connection)}


def tick(database_url: str) -> int:
    with closing(postgres.connect(database_url, "tests")) as connection:
        return Ticker(connection).run_once()


@pytest.fixture(params=["psycopg", "sqlalchemy"])
def opened(request: pytest.FixtureRequest, database_url: str) -> Callable[[], Any]:
    """Opens a transaction that commits at the end of its block."""

    @contextmanager
    def with_sqlalchemy() -> Iterator[Session]:
        engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
        with Session(engine) as session, session.begin():
            yield session
        engine.dispose()

    return with_sqlalchemy if request.param == "sqlalchemy" else lambda: psycopg.connect(database_url)


def test_a_schedule_is_made_changed_and_deleted_in_the_callers_transaction(
    database_url: str, opened: Callable[[], Any]
) -> None:
    with opened() as connection:
        drain.schedule(
            *(connection, "report", "shop.report"),
            cron=DAILY,
            args=[42],
            kwargs={"full": True},
            timezone="Europe/Berlin",
            missed="all",
            queue="reports",
            priority=3,
            context={"trace": "x"},
            key="acme",
        )
        assert all_of(database_url) == {}
    row = all_of(database_url)["report"]
    assert (row["job_name"], row["job_args"], row["job_kwargs"]) == ("shop.report", [42], {"full": True})
    assert (row["cron"], row["timezone"], row["missed"]) == (DAILY, "Europe/Berlin", "all")
    assert row["options"] == {"queue": "reports", "priority": 3, "context": {"trace": "x"}, "key": "acme"}
    assert (row["declared"], row["next_tick_at"]) == (False, None)

    with opened() as connection:
        drain.schedule(connection, "report", "shop.report", cron="0 4 * * *")
    assert all_of(database_url)["report"]["options"] == {}

    with opened() as connection:
        assert drain.unschedule(connection, "report") is True
        assert drain.unschedule(connection, "report") is False
    assert all_of(database_url) == {}


def test_a_rolled_back_transaction_creates_no_schedule(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        drain.schedule(connection, "report", "shop.report", cron=DAILY)
        connection.rollback()
    assert all_of(database_url) == {}


def test_a_schedules_jobs_have_the_registered_options(database_url: str) -> None:
    registered = drain.job(name="shop.report", queue="reports", max_attempts=2)(report)
    with psycopg.connect(database_url) as connection:
        drain.schedule(connection, "report", registered, cron="* * * * *")
    tick(database_url)
    query(database_url, "UPDATE crons SET next_tick_at = date_trunc('minute', now())")
    tick(database_url)

    assert query(database_url, "SELECT queue, max_attempts, tag FROM staged_jobs") == [
        ("reports", 2, "cron:report")
    ]


OF_KEYS = """
SELECT key, unique_key, keep, quiet_seconds, scheduled_at - (context ->> 'tick')::timestamptz FROM staged_jobs
"""


@pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "in a transaction"])
def test_a_schedules_jobs_have_keys_like_staged_jobs(database_url: str, is_declared: bool) -> None:
    options: dict[str, Any] = {
        "key": lambda shop=42: shop,
        "unique_key": "report",
        "keep": "last",
        "quiet": timedelta(seconds=90),
    }
    if is_declared:
        drain.job(name="shop.report", cron=DAILY, **options)(report)
        declare(database_url)
    else:
        with psycopg.connect(database_url) as connection:
            drain.schedule(connection, "report", "shop.report", cron=DAILY, **options)
    tick(database_url)
    query(database_url, "UPDATE crons SET next_tick_at = date_trunc('minute', now())")
    tick(database_url)

    assert query(database_url, OF_KEYS) == [("42", "report", "last", 90.0, timedelta(seconds=90))]


def test_rewriting_a_schedule_keeps_its_next_tick_and_its_pause(database_url: str) -> None:
    def write(cron: str = DAILY, **more: Any) -> dict[str, Any]:
        with psycopg.connect(database_url) as connection:
            drain.schedule(connection, "report", "shop.report", cron=cron, **more)
        return all_of(database_url)["report"]

    write()
    tick(database_url)
    first = all_of(database_url)["report"]
    query(database_url, "UPDATE crons SET paused = true")

    assert write()["changed_at"] == first["changed_at"]
    changed = write(args=[1])
    assert changed["next_tick_at"] == first["next_tick_at"]
    assert changed["changed_at"] > first["changed_at"]
    assert write("0 4 * * *")["next_tick_at"] is None
    assert all_of(database_url)["report"]["paused"] is True


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"cron": "0 0 31 2 *"},
            "cannot be read or never ticks: bad day-of-month, or none of its months has that day",
        ),
        ({"cron": "60 0 * * *"}, "cannot be read: bad minute"),
        ({"cron": "0 0 * * * * *"}, "has 7 fields"),
        ({"timezone": "Europe/Berln"}, "no time zone 'Europe/Berln'"),
        ({"missed": "first"}, "missed must be 'last', 'all' or 'none'"),
        ({"name": "n" * 251}, "1 to 250 printable characters"),
        ({"name": ""}, "1 to 250 printable characters"),
        ({"name": "a\0b"}, "1 to 250 printable characters"),
        ({"name": " "}, "1 to 250 printable characters"),
        ({"job": ""}, "a job name must have 1 to 255 characters"),
        ({"args": [object()]}, "cannot be written as JSON"),
        ({"args": "42"}, "a list or tuple"),
        ({"queue": "a b"}, "'a b' is not a queue name"),
        ({"max_attempts": -1}, "max_attempts must not be negative"),
        ({"key": "k" * 256}, "key must be a string of 1 to 255"),
        ({"unique_key": ""}, "unique_key must be a string of 1 to 255"),
        ({"key": lambda shop: shop}, "the key cannot be computed from the arguments"),
        ({"keep": "last"}, "keep needs a unique_key"),
        ({"quiet": timedelta(seconds=1)}, "quiet needs a unique_key"),
        ({"job": 42}, "a job must be a name or a function"),
    ],
)
def test_an_invalid_schedule_is_refused_and_leaves_the_transaction_unchanged(
    common_database_url: str, given: dict[str, Any], words: str
) -> None:
    options: dict[str, Any] = {"name": "report", "job": "shop.report", "cron": DAILY} | given
    with psycopg.connect(common_database_url) as connection:
        with pytest.raises(StageError) as error:
            drain.schedule(connection, options.pop("name"), options.pop("job"), **options)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "0 0 31 2 *"}, "none of its months has that day"),
        ({"cron": DAILY, "timezone": "Mars/Base"}, "no time zone"),
        ({"timezone": "Europe/Berlin"}, "timezone and missed need cron"),
        ({"missed": "all"}, "timezone and missed need cron"),
        ({"cron": DAILY, "name": "n" * 251}, "at most 250 characters"),
    ],
)
def test_a_registration_refuses_an_invalid_schedule(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        drain.job(**options)(report)


def test_a_job_with_a_cron_line_can_be_called_without_arguments() -> None:
    def of_day(day: str) -> None:
        """Report of a day."""

    with pytest.raises(ValueError, match=r"missing a required argument: 'day'.*drain\.schedule"):
        drain.job(name="of_day", cron=DAILY)(of_day)


def declare(database_url: str) -> list[str]:
    with closing(postgres.connect(database_url, "tests")) as connection:
        return crons.declare(connection, schedules.declared())


def test_a_declared_schedule_is_written_once_and_follows_the_code(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain.job(name="shop.report", queue="reports", cron=DAILY, timezone="Europe/Berlin")(report)
    assert declare(database_url) == ["shop.report"]
    row = all_of(database_url)["shop.report"]
    assert (row["cron"], row["timezone"], row["missed"], row["declared"]) == (
        DAILY,
        "Europe/Berlin",
        "last",
        True,
    )
    assert row["options"]["queue"] == "reports"

    tick(database_url)
    query(database_url, "UPDATE crons SET paused = true")
    before = all_of(database_url)
    assert declare(database_url) == []
    assert all_of(database_url) == before

    monkeypatch.setattr(registry, "_jobs", {})
    drain.job(name="shop.report", queue="reports", cron="0 4 * * *", timezone="Europe/Berlin")(report)
    assert declare(database_url) == ["shop.report"]
    after = all_of(database_url)["shop.report"]
    assert (after["cron"], after["next_tick_at"], after["paused"]) == ("0 4 * * *", None, True)


def test_a_schedule_of_an_application_is_not_overwritten_by_the_code(database_url: str) -> None:
    drain.job(name="shop.report", cron=DAILY)(report)
    with psycopg.connect(database_url) as connection:
        drain.schedule(connection, "shop.report", "shop.report", cron="0 5 * * *")

    assert declare(database_url) == []

    assert all_of(database_url)["shop.report"]["cron"] == "0 5 * * *"


def test_schedules_that_are_as_declared_are_not_locked(database_url: str) -> None:
    drain.job(name="shop.report", cron=DAILY)(report)
    declare(database_url)
    with psycopg.connect(database_url) as other:
        other.execute("UPDATE crons SET paused = true")
        assert declare(database_url) == []


MODULE = """
import drain

@drain.job(name="shop.report", cron="{cron}", timezone="Europe/Berlin")
def report():
    pass
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "cron_shop.py").write_text(MODULE.format(cron=DAILY))
    yield tmp_path
    sys.modules.pop("cron_shop", None)


def call(database_url: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["cron", *words, "--database-url", database_url])


def put(database_url: str, name: str = "report", **columns: Any) -> None:
    given = {"name": name, "job_name": "m.f", "cron": DAILY, **columns}
    places = ", ".join(["%s"] * len(given))
    query(database_url, f"INSERT INTO crons ({', '.join(given)}) VALUES ({places})", *given.values())


@pytest.mark.usefixtures("processes")
def test_drain_work_writes_the_schedules_of_its_jobs(database_url: str, redis_url: str, shop: Path) -> None:
    env = environment(database_url, redis_url, DRAIN_JOBS="cron_shop", PYTHONPATH=f"{shop}:{ROOT}")
    with drain_command("work", "--burst", env=env, cwd=shop) as work:
        assert work.wait(PATIENCE_SECONDS) == 0
        assert "schedules written: shop.report" in work.output

    row = all_of(database_url)["shop.report"]
    assert (row["cron"], row["declared"]) == (DAILY, True)


def test_a_worker_without_the_right_to_write_schedules_still_works(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    drain.job(name="shop.report", cron=DAILY)(report)
    query(database_url, "ALTER TABLE crons RENAME TO elsewhere")

    _declare(Settings(database_url=database_url), schedules.declared())

    assert "cannot write the schedules of the registered jobs: relation" in caplog.text


def test_apply_writes_declared_schedules_and_lists_undeclared_ones(database_url: str, shop: Path) -> None:
    put(database_url, "gone", declared=True)
    put(database_url, "own")

    first = call(database_url, "apply", "--jobs", "cron_shop")
    assert first.exit_code == 0, first.output
    assert "scheduled: shop.report" in first.stdout
    assert "gone is no longer declared; --prune removes it" in first.stderr

    second = call(database_url, "apply", "--jobs", "cron_shop", "--prune")
    assert second.stdout.splitlines() == ["removed: gone", "1 schedule declared, 0 changed, 1 removed"]
    assert sorted(all_of(database_url)) == ["own", "shop.report"]


def test_schedules_are_paused_resumed_and_removed_by_name(database_url: str) -> None:
    put(database_url)
    assert call(database_url, "pause", "report").stdout == "paused: report\n"
    assert call(database_url, "pause", "report").stderr == "report is already paused\n"
    assert call(database_url, "resume", "report").stdout == "resumed: report\n"
    assert call(database_url, "resume", "report").stderr == "report is not paused\n"
    assert call(database_url, "remove", "report").stdout == "removed: report\n"
    assert all_of(database_url) == {}


@pytest.mark.parametrize("command", ["pause", "resume", "remove", "run"])
def test_an_unknown_schedule_name_is_one_line(database_url: str, command: str) -> None:
    put(database_url)
    result = call(database_url, command, "raport")
    assert result.exit_code == 1
    assert result.stderr == "Error: no schedule is named 'raport'; did you mean report?\n"


def test_run_stages_one_job_now_and_prints_its_id(database_url: str) -> None:
    put(database_url, job_args="[1]", options='{"queue": "reports"}', paused=True)
    tick(database_url)
    before = all_of(database_url)

    result = call(database_url, "run", "report")

    ((job_id, *columns),) = query(database_url, "SELECT id, job_args, queue, tag FROM staged_jobs")
    assert (result.stdout, columns) == (f"{job_id}\n", [[1], "reports", "cron:report"])
    assert all_of(database_url) == before


def test_the_list_shows_ticks_pauses_errors_and_undeclared_schedules(database_url: str, shop: Path) -> None:
    now = datetime.now(UTC)
    put(database_url, next_tick_at=now + timedelta(hours=2), last_tick_at=now - timedelta(hours=22))
    put(database_url, "paused", paused=True)
    put(database_url, "wrong", error="there is no time zone 'Mars/Base'")
    put(database_url, "gone", declared=True)

    result = call(database_url, "list", "--jobs", "cron_shop")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["name", "cron", "zone", "next", "tick", "last", "tick"]
    assert any("in 2h" in line and "22h ago" in line for line in lines)
    assert "wrong has no ticks: there is no time zone 'Mars/Base'" in lines
    assert "gone is no longer declared; `drain cron remove` deletes it" in lines
    assert max(map(len, lines[:5])) <= 80

    rows = {row["name"]: row for row in json.loads(call(database_url, "list", "--json").stdout)}
    assert (rows["paused"]["paused"], rows["gone"]["gone"]) == (True, None)
    # The leader has not computed it yet.
    assert datetime.fromisoformat(rows["gone"]["next_tick_at"]) > now


def test_an_empty_list_says_so(database_url: str) -> None:
    result = call(database_url, "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("no schedules;")


def test_the_audit_finds_ticks_that_a_leader_misses(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(database_url, "late", next_tick_at=datetime.now(UTC) - timedelta(seconds=40))
    put(database_url, "soon", next_tick_at=datetime.now(UTC))
    put(database_url, "wrong", error="no such zone")
    with closing(postgres.connect(database_url, "tests")) as connection:
        monkeypatch.setattr(queries, "leader", lambda _: None)
        without = audit(connection, patience_seconds=0)
        led = {"name": "host", "since": (datetime.now(UTC) - timedelta(seconds=40)).isoformat()}
        monkeypatch.setattr(queries, "leader", lambda _: led)
        assert len(audit(connection, patience_seconds=0).breaches) == 1
        report = audit(connection, patience_seconds=0, overdue_seconds=30)
        crons.remove(connection, ["late", "wrong"])
        assert audit(connection, patience_seconds=0).ok

    assert [(breach.check, breach.count) for breach in without.breaches] == [("ticks", 1)]
    assert [breach.explanation.rpartition(": ")[2] for breach in report.breaches] == ["late", "wrong"]

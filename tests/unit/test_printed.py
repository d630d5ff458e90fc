"""What people read on terminals of 80 and of 120 columns; the texts are in tests/printed."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner

from drain.__main__ import main
from drain.commands.cron import show_schedules
from drain.commands.dead import show_groups
from drain.read.dead_groups import Death, Ended, Group
from drain.read.tracebacks import Frame
from drain.terminal.job_details import show_job
from drain.terminal.job_table import show_jobs
from tests.golden import WIDTHS, assert_printed

NOW = datetime(2026, 11, 22, 1, 31, 7, tzinfo=UTC)
RECEIPT, DIGEST, THUMBNAIL = "shop.jobs.send_receipt", "shop.reports.weekly.digest", "media.images.thumbnail"
TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 12, in send_receipt
    order = session.get_one(Order, order_id)
sqlalchemy.exc.NoResultFound: No row was found when one was required
"""
NO_ROW = {
    "type": "sqlalchemy.exc.NoResultFound",
    "message": "No row was found when one was required",
    "traceback": TRACEBACK,
}
every_width = pytest.mark.parametrize("width", WIDTHS)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def a_job(job_id: int, name: str = RECEIPT, queue: str = "mail", **columns: Any) -> dict[str, Any]:
    always: dict[str, Any] = {
        "id": job_id,
        "job_name": name,
        "job_args": [job_id * 3],
        "job_kwargs": {},
        "queue": queue,
        "priority": 0,
        "scheduled_at": ago(3600),
        "tag": "shop.order",
        "staged_at": ago(3600),
        "context": None,
    }
    return always | columns


def inflight(job_id: int, name: str = RECEIPT, queue: str = "mail", **columns: Any) -> dict[str, Any]:
    unclaimed: dict[str, Any] = dict.fromkeys(
        ("claimed_at", "claimed_by", "lease_expires_at", "next_run_at", "failed_at")
    )
    more: dict[str, Any] = {"attempts": 0, "batched": False, "moved_at": ago(3599)}
    given: dict[str, Any] = unclaimed | more | columns
    return a_job(job_id, name, queue, **given)


def dead(job_id: int, reason: str, explanation: str, *job: str, **columns: Any) -> dict[str, Any]:
    more: dict[str, Any] = {"died_at": ago(90), "attempts": 10, "last_error": None} | columns
    return a_job(job_id, *job, reason=reason, explanation=explanation, **more)


WORKER = "web-1.example.org:4711:a1b2c3"
TABLES: dict[str, list[dict[str, Any]]] = {
    "staged": [
        a_job(2_000_003, scheduled_at=ago(-86_400), staged_at=ago(5)),
        a_job(2_000_002, DIGEST, "reports", staged_at=ago(0.2), scheduled_at=ago(0.2), priority=100),
        a_job(999, THUMBNAIL, "thumbnails-of-customers", job_args=["größe", {"width": 640, "height": 480}]),
    ],
    "inflight": [
        inflight(
            12_346,
            THUMBNAIL,
            "thumbnails-of-customers",
            claimed_at=ago(0.34),
            lease_expires_at=ago(-29),
            claimed_by=WORKER,
            batched=True,
        ),
        inflight(12_345),
        inflight(
            12_344,
            DIGEST,
            "reports",
            claimed_at=ago(61),
            failed_at=ago(60),
            next_run_at=ago(-64),
            attempts=3,
        ),
        inflight(12_343, claimed_at=ago(10), claimed_by=WORKER, next_run_at=ago(-50)),
        inflight(9, claimed_at=ago(7500), claimed_by=WORKER, lease_expires_at=ago(7000)),
    ],
    "finished": [
        a_job(
            31,
            THUMBNAIL,
            "thumbnails-of-customers",
            claimed_at=ago(8),
            finished_at=ago(7.988),
            finished_by=WORKER,
            attempts=1,
        ),
        a_job(
            30, DIGEST, "reports", claimed_at=ago(400), finished_at=ago(200), finished_by=WORKER, attempts=3
        ),
        a_job(29, DIGEST, "reports", claimed_at=ago(900), finished_at=ago(900), attempts=0, superseded_by=30),
    ],
    "dead": [
        dead(42, "failed", "failed 10 times; last: NoResultFound: No row was found", last_error=NO_ROW),
        dead(41, "expired", "its expires_at had passed before a worker could start it", attempts=0),
        dead(40, "gave up", "customer 7\nhas been deleted", DIGEST, "reports", died_at=ago(357_000)),
        dead(39, "lease", "its worker died or stalled on the last attempt, and the lease ran out", THUMBNAIL),
    ],
}


@every_width
@pytest.mark.parametrize("state", TABLES)
def test_each_job_in_a_table_is_one_line_that_fits_the_terminal(
    state: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show_jobs(state, TABLES[state], NOW)
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 1 + len(TABLES[state])
    assert_printed(f"list-{state}", width, text)


@every_width
def test_groups_of_dead_jobs_fit_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = Frame("/srv/app/shop/jobs.py", 12, "send_receipt")
    error = "sqlalchemy.exc.NoResultFound"
    at = Death(42, RECEIPT, "mail", ago(90), "failed", error, NO_ROW["message"], frame)
    expired = Death(41, DIGEST, "mail", ago(7000), "expired", None, "its expires_at had passed", None)
    groups = [
        Group("0" * 16, at, [Ended(at.id, at.died_at)] * 1234),
        Group("1" * 16, expired, [Ended(expired.id, expired.died_at)]),
    ]
    monkeypatch.setenv("COLUMNS", str(width))
    show_groups(groups, NOW)
    assert_printed("dead-groups", width, capsys.readouterr().out)


def test_a_deferred_job_without_a_claim_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    show_jobs("inflight", [inflight(7, next_run_at=ago(-60))], NOW)

    assert "deferred" in capsys.readouterr().out


@every_width
def test_the_details_of_a_job_fit_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    life = {"died_at": "2026-11-20T10:00:00.5+00:00", "reason": "failed", "attempts": 3, "last_error": NO_ROW}
    items = [{"sku": f"A-{number}", "quantity": number, "gift": False} for number in (1, 2)]
    job = dead(
        42,
        "failed",
        "failed 10 times; last: sqlalchemy.exc.NoResultFound: No row was found when one was required",
        job_args=[126, items, "a note to the customer that is longer than a line of a narrow terminal " * 2],
        last_error=NO_ROW,
        history=[life],
        died_xid=804,
    )
    monkeypatch.setenv("COLUMNS", str(width))
    show_job({"state": "dead", **job}, NOW)
    assert_printed("show", width, capsys.readouterr().out)


@every_width
def test_schedules_fit_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def schedule(name: str, **columns: Any) -> dict[str, Any]:
        job = {"name": name, "job_name": name, "cron": "0 3 * * *", "timezone": "UTC", "declared": True}
        state = {"paused": False, "error": None, "gone": False, "next_tick_at": None, "last_tick_at": None}
        return job | state | columns

    schedules = [
        schedule("media.images.sweep", cron="*/15 * * * *", next_tick_at=ago(-533), last_tick_at=ago(367)),
        schedule(
            "report of shop 42, for its owner and the accountant",
            job_name=DIGEST,
            cron="30 6 * * mon-fri",
            timezone="America/New_York",
            next_tick_at=ago(-122_333),
            last_tick_at=ago(136_867),
        ),
        schedule("shop.reports.monthly", paused=True, last_tick_at=ago(86_400)),
        schedule(
            "shop.reports.weekly",
            error="there is no time zone 'Mars/Base': use a name such as 'Europe/Berlin'",
        ),
        schedule("shop.reports.yearly", next_tick_at=ago(-3600), gone=True),
    ]
    monkeypatch.setenv("COLUMNS", str(width))
    show_schedules(schedules, NOW)
    assert_printed("cron-list", width, capsys.readouterr().out)


def test_colours_are_used_on_terminals_or_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(**env: str) -> str:
        for name in ("FORCE_COLOR", "NO_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        show_jobs("dead", TABLES["dead"], NOW)
        return capsys.readouterr().out

    monkeypatch.setenv("TERM", "xterm-256color")
    red = "\x1b[31m"
    assert red in shown(FORCE_COLOR="1")
    assert red not in shown(FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b" not in shown()


def commands() -> Iterator[str]:
    """The words of each command and group, as they are typed."""
    yield ""
    for name, command in main.commands.items():
        yield name
        if isinstance(command, click.Group):
            yield from (f"{name} {inner}" for inner in command.commands)


# Extensions add commands and options.
@pytest.mark.contrib
@pytest.mark.parametrize("words", list(commands()))
def test_the_help_of_each_command_fits_the_terminal(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    # Not by CliRunner, whose terminal has two columns more.
    main([*words.split(), "--help"], prog_name="drain", standalone_mode=False)
    text = capsys.readouterr().out
    # A summary for which there is no room would end so.
    assert not re.search(r"\w\.\.\.$", text, re.MULTILINE)
    assert_printed("-".join(["help", *words.split()]), 80, text)


def test_the_top_level_help_fits_one_screen_and_lists_first_steps_in_order() -> None:
    text = CliRunner().invoke(main, ["--help"], prog_name="drain").output
    assert len(text.splitlines()) <= 55
    places = [text.index(f"\n  {name} ") for name in ("demo", "dev", "init", "run", "work", "status")]
    assert places == sorted(places)

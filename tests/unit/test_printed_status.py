"""What `drain status` and `drain audit` print, compared with text files."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from drain.audit import CHECKS, Breach, Report
from drain.audit.report import OF_REDIS
from drain.commands.audit import show_audit
from drain.read.queue import Queue
from drain.read.system import System
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow
from drain.terminal.status_report import show_status, status_view
from tests.golden import WIDTHS, assert_printed

NOW = datetime(2026, 11, 22, 1, 31, 7, tzinfo=UTC)
LEADER = {"name": "shop-1:4711:c0ffee", "since": "2026-11-22T01:31:07.123456+00:00"}
AWAY = "Redis at localhost:6379/0 does not take commands: Error 111 connecting to localhost:6379. Connection refused."

widths = pytest.mark.parametrize("width", WIDTHS)


def queue(age: float = 0.0, job: int | None = None, **numbers: Any) -> Queue:
    return Queue(oldest_queued_id=job, queued_seconds=age, **numbers)


def status(**more: Any) -> System:
    return System(NOW, **more)


def busy(**more: Any) -> System:
    queues = {
        "default": queue(0.04, 1_204_511, queued=1, running=2, workers=4, free=2, redis_depth=1),
        "mail": queue(
            age=200.0,
            job=42,
            scheduled=1,
            ready=2,
            queued=11_990,
            retrying=10,
            workers=0,
            redis_depth=12_345,
            waiting={"scheduled": 1, "list_full": 2, "queued": 11_990, "retrying": 10},
        ),
        "calls": queue(
            ready=100_200,
            running=50,
            retrying=1,
            workers=8,
            free=0,
            redis_depth=0,
            waiting={"paused": 200, "limited": 100_000, "called_back": 1},
            estimates={"ready", "limited"},
            paused=Pause("calls", None, None, None, None, "ann", NOW),
            rules=RulesRow("calls", running=50),
        ),
        "orders": queue(ready=2, ready_seconds=8.21, waiting={"due": 2}, workers=1, free=1, redis_depth=0),
        "reports-of-the-week:europe": queue(
            dead=2,
            retrying=6,
            waiting={"retrying": 6},
            failing=True,
            workers=1,
            free=1,
            redis_depth=0,
        ),
    }
    told = {"finished": 2_500_000, "finished_is_estimate": True}
    return status(queues=queues, **{"leader": LEADER} | told | more)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a function prints on a terminal of this width."""

    def print_(width: int, show: Any, *given: Any) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        show(*given)
        return capsys.readouterr().out

    return print_


@pytest.mark.parametrize("width", [90, 100, 110])
def test_the_status_breaks_no_word_if_the_narrow_table_fits(printed: Any, width: int) -> None:
    few = status(queues={"default": queue(0.04, 7, ready=1, workers=4, redis_depth=1)}, leader=LEADER)
    lines = printed(width, show_status, few).splitlines()
    (heading,) = [number for number, line in enumerate(lines) if line.startswith("queue ")]
    assert "oldest unclaimed" in lines[heading]
    assert lines[heading + 1].startswith("default")


@widths
def test_a_status_shows_each_queues_workers_and_advice_where_none_run(printed: Any, width: int) -> None:
    assert_printed("status", width, printed(width, show_status, busy()))


@widths
def test_a_status_without_redis_shows_workers_as_unknown(printed: Any, width: int) -> None:
    unknown = busy(leader=None)
    for counts in unknown.queues.values():
        counts.workers = counts.redis_depth = None

    assert_printed("status-without-redis", width, printed(width, show_status, unknown))


def test_an_empty_status_has_no_table(printed: Any) -> None:
    assert_printed("status-of-nothing", 80, printed(80, show_status, status()))


@widths
def test_a_status_of_large_numbers_fits_the_terminal(printed: Any, width: int) -> None:
    counts: Any = dict.fromkeys(("ready", "queued", "running", "retrying", "dead"), 123_456_789)
    large = queue(359_999, 123_456_789_012, **counts, workers=1000, free=1000, redis_depth=123_456_789)

    text = printed(width, show_status, status(queues={"a" * 100: large}))

    assert max(map(len, text.splitlines())) <= width
    assert "".join(text.split()).count("123") >= 10


def test_advice_is_given_for_only_some_of_many_queues_without_workers(printed: Any) -> None:
    queues = {
        f"queue-{number:02}": queue(1.0, 1, queued=1, waiting={"queued": 1}, workers=0)
        for number in range(40)
    }

    text = printed(80, show_status, status(queues=queues))

    assert text.count("drain work queue-") == 10
    assert "30 more queues without a worker" in text


@pytest.mark.parametrize(
    ("counts", "unattended"),
    [
        (queue(workers=0, queued=1, waiting={"queued": 1}), True),
        (queue(workers=0, retrying=1, waiting={"retrying": 1}), True),
        (queue(workers=0, ready=1, scheduled=1, waiting={"due": 1, "scheduled": 1}), True),
        (queue(workers=0, scheduled=1, waiting={"scheduled": 1}), False),
        (queue(workers=0, dead=1), False),
        (queue(workers=0, running=1), False),
        (queue(workers=1, queued=1, waiting={"queued": 1}), False),
        (queue(workers=None, queued=1, waiting={"queued": 1}), False),
    ],
)
def test_a_queue_with_jobs_but_no_worker_is_marked(counts: Queue, unattended: bool) -> None:
    console = Console(force_terminal=True, width=80, color_system="standard")
    with console.capture() as capture:
        console.print(status_view(status(queues={"mail": counts}), 80))

    assert bool(re.search("\x1b\\[1;31m *none", capture.get())) is unattended
    assert ("drain work mail" in capture.get()) is unattended


COUNTS = {"staged": 12_000, "inflight": 3, "finished": 1_234_567, "dead": 1}
BREACHES = (
    Breach("once", "in staged_jobs and inflight_jobs", 2, (7, 8)),
    Breach(
        "overdue",
        "due and not drained, for more than 60 s; there is no leader, start `drain run`",
        12_000,
        (1, 2),
    ),
    Breach(
        "attended",
        "waiting in queue mail, which has no worker, since 2026-11-22 01:31:07Z; start `drain work mail`",
        *(3, (4, 5, 6)),
    ),
)


@widths
@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("audit", Report(COUNTS, (), redis_asked=True)),
        ("audit-breaches", Report(COUNTS, BREACHES, redis_asked=True)),
        ("audit-without-redis", Report(COUNTS, (), redis_asked=False)),
        (
            "audit-redis-away",
            Report(COUNTS, (), redis_asked=True, unchecked=dict.fromkeys(OF_REDIS, AWAY)),
        ),
        (
            "audit-everything-wrong",
            Report(COUNTS, tuple(Breach(name, "wrong") for name in CHECKS), redis_asked=True),
        ),
    ],
)
def test_an_audit_has_a_line_for_each_check(printed: Any, width: int, name: str, report: Report) -> None:
    assert_printed(name, width, printed(width, show_audit, report))


def test_a_breach_is_one_line_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    show_audit(Report(COUNTS, BREACHES, redis_asked=True))

    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS) + len(BREACHES) + 1

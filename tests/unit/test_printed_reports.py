"""What the reports of demo, drills and Spark commands look like on terminals; the texts are in tests/printed."""

from datetime import UTC, date, datetime
from typing import Any, cast

import pytest
from docsearch.index import Hit
from docsearch.report import Report as DemoReport, Result as DemoResult
from docsearch.verdict import Verdict as DemoVerdict
from drills.report import Report as DrillReport, Result as DrillResult
from drills.verdict import Evidence, Verdict

from drain.pipeline.archive import Archived
from drain.pipeline.backfill import Preview
from drain.pipeline.commands.archive import _show as show_archived
from drain.pipeline.commands.backfill import _show_preview
from drain.pipeline.commands.reconcile import _show as show_differences
from drain.pipeline.commands.stats import _show as show_stats, about
from drain.pipeline.comparison import DELETED, DIFFERENT
from drain.pipeline.copying import Step
from drain.pipeline.stats.question import Question
from drain.pipeline.stats.report import Finished, Group, Period, Report, Times
from tests.golden import WIDTHS, assert_printed

NOW = datetime(2026, 11, 22, 1, 31, 7, tzinfo=UTC)


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return cast(int, request.param)


def test_the_demo_shows_its_figures_and_what_it_found(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = DemoVerdict(9012, 1003, 9012, 0, (), (), tuple(number / 1000 for number in range(1, 101)))
    hits = [Hit("asyncio.gather", "…", "Run \x02awaitable\x03 objects in the sequence \x02concurrently\x03.")]
    report = DemoReport(as_json=False)
    report.conclude(DemoResult(verdict, 61.2, "awaitable concurrently", hits, ["zlib.adler32"]))
    assert_printed("demo", width, capsys.readouterr().out)


def test_drills_show_a_table_at_the_end(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    proof = Evidence("inflight_jobs: the fencing token is 2", "token 2 after 4.2 s", holds=True)
    doubt = Evidence("finished_jobs: each job once", "12 twice", holds=False)
    happened = "the worker was killed in the middle of a job, and the job ran again elsewhere"
    results = [
        DrillResult("kill-worker", "", Verdict(happened, [proof], [proof]), 6.3),
        DrillResult("restart-postgres", "", Verdict(happened, [doubt], [proof]), 83),
        DrillResult("lease-race", "", Verdict(happened, [proof, proof], [doubt]), 0.25),
    ]
    DrillReport(as_json=False).summarise(results)
    assert_printed("drills", width, capsys.readouterr().out)


def report(*names: tuple[str, str, int]) -> Report:
    times = Times(9000, 0.0123, 0.0008, 181.5, 0.0042, 0.0521, 0.31, 12.5)
    groups = [
        Group(
            queue=queue,
            job_name=name,
            done=Finished(
                finished=number,
                retried=number // 7,
                attempts=number * 8 // 7,
                waiting=times,
                processing=times,
                slowest_id=1_234_567,
            ),
            dead={"failed": 3, "expired": 1},
            dead_attempts=30,
            staged=5,
            inflight=2,
        )
        for queue, name, number in names
    ]
    ended: dict[str, Any] = {"done": groups[0].done, "dead": groups[0].dead, "dead_attempts": 30}
    total = Group(**ended, staged=5, inflight=2)
    period = Period(start=datetime(2026, 11, 21, tzinfo=UTC), **ended)
    return Report(at=NOW, since=None, per="day", total=total, jobs=groups, periods=[period], details=[period])


def test_stats_show_tables(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(
        ("mail", "shop.jobs.send_receipt", 1_234_567), ("thumbnails", "media.images.customers.thumbnail", 12)
    )
    show_stats(shown, about(Question(queue="mail"), shown), 20)
    assert_printed("stats", width, capsys.readouterr().out)


@pytest.mark.parametrize(("staged", "said"), [(1, "1 job staged"), (1200, "1,200 jobs staged")])
def test_reconcile_counts_the_differences(staged: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan: Any = type("Plan", (), {"queue": "default", "delete_job": None})
    result: Any = type("Result", (), {"reasons": {"missing in target": staged, DIFFERENT: 2, DELETED: 3}})
    result.run_id, result.staged, result.waiting, result.seconds = "nightly", staged, 1, 61.2
    result.skipped = {"source": 0, "target": 0}
    result.refused, result.changed = None, {"name": 0, "text=body": 2}
    show_differences(plan, result, dry_run=False)
    text = capsys.readouterr().out
    assert f"{said} on queue default in 1m 1s; for 1 more a job is already waiting" in text
    shown = [line.split() for line in text.splitlines()]
    assert shown[1:4] == [["different", "in", "target", "2"], ["name", "0"], ["text=body", "2"]]


def test_numbers_and_times_are_worded_alike_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    show_archived(Archived(date(2026, 11, 20), 1, late=False, seconds=0.5), as_json=False)
    plan: Any = type("Plan", (), {"queue": "bulk", "priority": 100, "job_name": "m.f"})
    _show_preview(plan, Preview(1, 0, [("[1]", "{}")]), 0, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "2026-11-20  1 row  archived, partition dropped",
        "m.f  [1]",
        "1 job on queue bulk with priority 100; nothing was staged",
    ]
    assert str(Step(10, 1.0)) == "10 rows copied, 10 a second"

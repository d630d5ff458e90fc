"""Tables of the statistics, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drain.visible import visible
from pipeline.stats.report import Ended, Group, Period, Report, Times
from pipeline.stats.words import count_or_dash, seconds, share

_TIMES = ("avg", "min", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class Table:
    """Table of which the first `texts` columns are texts, and all others numbers."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]]
    texts: int = 2


def tables(report: Report, *, top: int, periods: int | None = None) -> list[Table]:
    """Make the tables that have a row: counts, waiting and processing times, periods, slowest and most failing jobs.

    Args:
        report: Report to show.
        top: Upper bound of the jobs of a table: the most frequent, slowest or most failing.
        periods: Number of the latest periods; None for all of them.
    """
    jobs = report.jobs[:top]
    rest = len(report.jobs) - len(jobs)
    more = f", the {top} most frequent of {len(report.jobs)}" if rest else ""
    all_of_them = [
        _counts(f"Jobs{more}", jobs, report.total),
        _times(f"Waiting time{more}", [(job, job.done.waiting) for job in jobs], report.total.done.waiting),
        _times(
            f"Processing time{more}",
            [(job, job.done.processing) for job in jobs],
            report.total.done.processing,
        ),
        _periods(report.per, report.periods, periods),
        _slowest(report.slowest(top)),
        _failing(report.most_failing(top), list(report.total.dead)),
    ]
    return [table for table in all_of_them if table.rows]


def _counts(title: str, jobs: Sequence[Group], total: Group) -> Table:
    columns = ("queue", "job", "finished", "retried", "per job", "dead", "staged", "in flight")
    rows = [[*_name(job), *_numbers(job)] for job in jobs]
    return Table(title, columns, [*rows, ["", "all", *_numbers(total)]] if rows else [])


def _numbers(job: Group) -> list[str]:
    return [
        count_or_dash(job.done.finished),
        share(job.done.retried_share),
        f"{job.done.attempts_per_job:.2f}" if job.done.finished else "–",
        count_or_dash(job.died),
        count_or_dash(job.staged),
        count_or_dash(job.inflight),
    ]


def _times(title: str, jobs: Sequence[tuple[Group, Times | None]], total: Times | None) -> Table:
    rows = [[*_name(job), *_durations(times)] for job, times in jobs if times]
    if rows:
        rows.append(["", "all", *_durations(total)])
    return Table(title, ("queue", "job", *_TIMES), rows)


def _durations(times: Times | None) -> list[str]:
    return [seconds(getattr(times, name) if times else None) for name in _TIMES]


def _periods(per: str, periods: Sequence[Period], most: int | None) -> Table:
    shown = periods[-most:] if most else periods
    cut = f", the latest {len(shown)} of {len(periods)}" if len(shown) < len(periods) else ""
    columns = (
        *("from (UTC)", "finished", "retried", "dead"),
        *("wait p50", "wait p99", "run p50", "run p99"),
    )
    rows = [
        [
            f"{period.start:{'%Y-%m-%d %H:%M' if per == 'hour' else '%Y-%m-%d'}}",
            *(
                count_or_dash(period.done.finished),
                share(period.done.retried_share),
                count_or_dash(period.died),
            ),
            *_ends(period.done.waiting),
            *_ends(period.done.processing),
        ]
        for period in shown
    ]
    return Table(f"Per {per}{cut}", columns, rows, texts=1)


def _ends(times: Times | None) -> list[str]:
    return [seconds(times.p50 if times else None), seconds(times.p99 if times else None)]


def _slowest(jobs: Sequence[Group]) -> Table:
    columns = ("queue", "job", "p95", "max", "id of that")
    rows = [
        [*_name(job), seconds(times.p95), seconds(times.max), str(job.done.slowest_id)]
        for job in jobs
        if (times := job.done.processing)
    ]
    return Table("Slowest jobs", columns, rows)


def _failing(jobs: Sequence[Group], reasons: Sequence[str]) -> Table:
    columns = ("queue", "job", "attempts lost", "dead", "of all", *map(visible, reasons))
    rows = [
        [
            *(
                *_name(job),
                count_or_dash(job.failed_attempts),
                count_or_dash(job.died),
                share(job.dead_share),
            ),
            *(count_or_dash(job.dead.get(reason, 0)) for reason in reasons),
        ]
        for job in jobs
    ]
    return Table("Most failing jobs", columns, rows)


def _name(job: Ended) -> list[str]:
    return [visible(job.queue or ""), visible(job.job_name or "")]

"""Tables of the statistics, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from drain import formatting
from drain.formatting import visible
from drain.pipeline.stats.report import (
    Ended,
    Finished,
    Flows,
    Group,
    Node,
    Period,
    Report,
    Times,
    Weeks,
)
from drain.pipeline.stats.words import changed, count, count_or_dash, period_start, seconds, share, whole

_NAMES = 3
_CHANGES: Mapping[str, tuple[str, Callable[[float | None], str]]] = {
    "finished": ("completed", whole),
    "dead": ("dead", whole),
    "failed_attempts": ("failed attempts", whole),
    "waiting_p50": ("wait p50", seconds),
    "waiting_p95": ("wait p95", seconds),
    "processing_p95": ("run p95", seconds),
}
_TIMES = ("avg", "min", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class Table:
    """Table; the columns after the first `texts` are numbers."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]]
    texts: int = 2


def tables(report: Report, *, top: int, periods: int) -> list[Table]:
    """Build tables with rows, of the `top` jobs and the latest `periods`."""
    jobs, rest = report.jobs[:top], report.jobs[top:]
    more = f", the {top} most frequent of {count(len(report.jobs))}" if rest else ""
    all_of_them = [
        _counts(f"Jobs{more}", jobs, rest, report.total),
        _times(f"Waiting time{more}", [(job, job.done.waiting) for job in jobs], report.total.done.waiting),
        _times(
            f"Processing time{more}",
            [(job, job.done.processing) for job in jobs],
            report.total.done.processing,
        ),
        _periods(report.per, report.periods, periods),
        _slowest(report.slowest(top)),
        _failing(report.most_failing(top), list(report.total.dead)),
        _flows(report.flows[:top]),
        _nodes(report.nodes[:top]),
    ]
    return [table for table in all_of_them if table.rows]


def weeks(report: Report, *, top: int) -> Table:
    """Compare two weeks by queue, the busiest first; empty if the report covers less."""
    columns = ("queue", *(column for column, _ in _CHANGES.values()))
    shown = report.weeks[: top + 1] if report.covers_weeks else []
    rows = [[_name(one.this)[0] if one.queue is not None else "all", *_changes(one)] for one in shown]
    rest = report.weeks[top + 1 :]
    if rows and rest:
        others = Weeks(_together([one.this for one in rest]), _together([one.last for one in rest]))
        rows.append([formatting.count(len(rest), "other"), *_changes(others)])
    return Table("This week and last week", columns, rows, texts=1)


def _changes(weeks: Weeks) -> list[str]:
    return [
        changed(words(change.this), change.percent)
        for change, (_, words) in ((weeks.changes[name], shown) for name, shown in _CHANGES.items())
    ]


def errors(report: Report) -> Table:
    """List the most frequent errors."""
    rows = [
        [visible(error.text), _names(error.job_names), count(error.jobs), formatting.clock(error.last_seen)]
        for error in report.errors
    ]
    rest = report.total.died - sum(error.jobs for error in report.errors)
    if rest:
        rows.append(["others", "", count(rest), ""])
    return Table("Errors of dead jobs", ("error", "jobs", "dead", "last seen"), rows)


def _names(names: Sequence[str]) -> str:
    more = f" and {count(len(names) - _NAMES)} more" if len(names) > _NAMES else ""
    return ", ".join(map(visible, names[:_NAMES])) + more


def _together(jobs: Sequence[Ended]) -> Group:
    done = Finished(
        finished=sum(job.done.finished for job in jobs),
        retried=sum(job.done.retried for job in jobs),
        attempts=sum(job.done.attempts for job in jobs),
    )
    return Group(
        done=done,
        dead={"any": sum(job.died for job in jobs)},
        dead_attempts=sum(job.dead_attempts for job in jobs),
        staged=sum(job.staged for job in jobs if isinstance(job, Group)),
        inflight=sum(job.inflight for job in jobs if isinstance(job, Group)),
    )


def _counts(title: str, jobs: Sequence[Group], rest: Sequence[Group], total: Group) -> Table:
    columns = ("queue", "job", "completed", "retried", "per job", "dead", "staged", "in flight")
    rows = [[*_name(job), *_numbers(job)] for job in jobs]
    if rest:
        rows.append(["", formatting.count(len(rest), "other"), *_numbers(_together(rest))])
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


def _periods(per: str, periods: Sequence[Period], most: int) -> Table:
    shown = periods[-most:] if most else []
    cut = f", the latest {len(shown)} of {len(periods)}" if len(shown) < len(periods) else ""
    columns = (
        *("from (UTC)", "completed", "retried", "dead"),
        *("wait p50", "wait p99", "run p50", "run p99"),
    )
    rows = [
        [
            period_start(period.start, per),
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
    columns = ("queue", "job", "p95", "max", "slowest job")
    rows = [
        [*_name(job), seconds(times.p95), seconds(times.max), str(job.done.slowest_id)]
        for job in jobs
        if (times := job.done.processing)
    ]
    return Table("Slowest jobs", columns, rows)


def _failing(jobs: Sequence[Group], reasons: Sequence[str]) -> Table:
    columns = ("queue", "job", "failed attempts", "dead", "share", *map(visible, reasons))
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


def _flows(flows: Sequence[Flows]) -> Table:
    columns = ("flow", "completed", "unfinished", "cancelled", "members", "dead", "p50", "p95", "max")
    rows = [
        [
            visible(one.name) or "–",
            *(count_or_dash(number) for number in (one.finished, one.unfinished, one.cancelled)),
            *(count_or_dash(number) for number in (one.members, one.dead)),
            *(seconds(getattr(one.duration, name, None)) for name in ("p50", "p95", "max")),
        ]
        for one in flows
    ]
    return Table("Flows", columns, rows, texts=1)


def _nodes(nodes: Sequence[Node]) -> Table:
    columns = ("flow", "node", "completed", "p50", "p95", "max")
    rows = [
        [
            *(visible(one.flow) or "–", visible(one.node), count(one.processing.jobs)),
            *(seconds(getattr(one.processing, name)) for name in ("p50", "p95", "max")),
        ]
        for one in nodes
    ]
    return Table("Slowest nodes", columns, rows)


def _name(job: Ended) -> list[str]:
    return [visible(job.queue or ""), visible(job.job_name or "")]

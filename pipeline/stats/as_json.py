"""Statistics as JSON: later versions may add fields, but not change or remove any.

`at`, `since`, `per`     instant, start or null, `hour` or `day`
`dropped_before`         day before which finished jobs were dropped unarchived, or null
`total`                  all jobs: `finished`, `retried`, `retried_share`, `attempts_per_job`, `failed_attempts`,
                         `dead` by reason, `staged`, `inflight`, `waiting`, `processing`, `slowest_id`
`jobs`                   the same by `queue` and `job_name`
`periods`                the same from each `start`, without `staged` and `inflight`
`details`                counts of each period, by `queue` and `job_name`
`slowest`                `queue` and `job_name`, by p95 of `processing`
`most_failing`           `queue` and `job_name`, by dead jobs and failed attempts
`weeks`                  by `queue`, null for all: `finished`, `dead` without cancelled ones, `failed_attempts`,
                         `waiting_p50`, `waiting_p95`, `processing_p95`, each with `this` (the last seven days),
                         `last` and `change_percent`, or null; null if the report covers less
`errors`                 most frequent errors of dead jobs: `text`, `jobs`, `job_names`, `last_seen`
`flows`                  by `name`, empty for batches: flows `finished`, `unfinished` and `cancelled`, their `members`
                         and `dead` members, and `duration`; empty if jobs are selected
`slowest_nodes`          `flow`, `node` and `processing`, by its p95

`waiting`, `processing` and `duration` are null, or seconds: `jobs` (their number, or that of flows), `avg`, `min`,
`max`, `p50`, `p90`, `p95`, `p99`.
Times are ISO 8601 in UTC.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from drain.pipeline.stats.report import Ended, Finished, Group, Period, Report, Weeks


def as_json(report: Report, top: int) -> dict[str, Any]:
    """Convert a report to JSON types, with rankings up to `top`."""
    return {
        "at": report.at.isoformat(),
        "since": report.since.isoformat() if report.since else None,
        "per": report.per,
        "dropped_before": report.dropped_before.isoformat() if report.dropped_before else None,
        "total": _group(report.total),
        "jobs": [_name(job) | _group(job) for job in report.jobs],
        "periods": [_start(period) | _counts(period) | _times(period.done) for period in report.periods],
        "details": [_start(period) | _name(period) | _counts(period) for period in report.details],
        "slowest": [_name(job) for job in report.slowest(top)],
        "most_failing": [_name(job) for job in report.most_failing(top)],
        "weeks": [_weeks(weeks) for weeks in report.weeks] if report.covers_weeks else None,
        "flows": [asdict(flows) for flows in report.flows],
        "slowest_nodes": [asdict(node) for node in report.nodes[:top]],
        "errors": [asdict(error) | {"last_seen": _utc(error.last_seen)} for error in report.errors],
    }


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _weeks(weeks: Weeks) -> dict[str, Any]:
    changes = {
        name: {"this": change.this, "last": change.last, "change_percent": change.percent}
        for name, change in weeks.changes.items()
    }
    return {"queue": weeks.queue, **changes}


def _name(of: Ended) -> dict[str, Any]:
    return {"queue": of.queue, "job_name": of.job_name}


def _group(group: Group) -> dict[str, Any]:
    return {
        **_counts(group),
        "staged": group.staged,
        "inflight": group.inflight,
        **_times(group.done),
    }


def _start(period: Period) -> dict[str, Any]:
    return {"start": period.start.isoformat()}


def _counts(ended: Ended) -> dict[str, Any]:
    return {
        "finished": ended.done.finished,
        "retried": ended.done.retried,
        "retried_share": ended.done.retried_share,
        "attempts_per_job": ended.done.attempts_per_job,
        "failed_attempts": ended.failed_attempts,
        "dead": dict(ended.dead),
    }


def _times(done: Finished) -> dict[str, Any]:
    return {
        "waiting": asdict(done.waiting) if done.waiting else None,
        "processing": asdict(done.processing) if done.processing else None,
        "slowest_id": done.slowest_id,
    }

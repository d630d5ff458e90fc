"""Rules for Prometheus: burn rates of objectives, and alerts on them over two windows each.

A burn rate of 1 spends the budget of an objective in exactly its period; with a period of 30 days, one of 14.4 spends
two percent of it in an hour, and one of 6 five percent in six hours. The shorter window of an alert ends it soon after
the cause has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from drain.contrib.slo.declared import Slo

Value: TypeAlias = "Mapping[str, Value] | Sequence[Value] | str | int | float"

# Indentation of each level.
_STEP = "  "

# Page with what to do about the alerts.
_RUNBOOK = "docs/operations/slo.md"
# Jobs that have to be late within the longer window: one late job in a quiet night wakes nobody.
_FEWEST_LATE = 3
# Time for which jobs of a queue wait, and none starts, before that is an alert of its own.
_STANDSTILL = "5m"


class _Alert(NamedTuple):
    """Alert on a burn rate.

    Attributes:
        name: Name of the alert.
        factor: Burn rate above which it fires.
        most: Upper bound of the share of late jobs above which it fires: the budget of a low objective times the factor
            may be more than all jobs.
        long: Longer window.
        short: Shorter window.
        severity: Label of the alert.
        words: Speed, for people.
    """

    name: str
    factor: float
    most: float
    long: str
    short: str
    severity: str
    words: str

    def threshold(self, budget: float) -> float:
        """Compute the burn rate above which the alert fires."""
        return round(min(self.factor, self.most / budget), 6)


_ALERTS = (
    _Alert(
        "DrainSLOBurnsFast",
        14.4,
        0.9,
        "1h",
        "5m",
        "critical",
        "two percent of its budget of 30 days in an hour",
    ),
    _Alert(
        "DrainSLOBurnsSlowly",
        6.0,
        0.75,
        "6h",
        "30m",
        "warning",
        "five percent of its budget of 30 days in six hours",
    ),
)


def rules(slos: Sequence[Slo]) -> str:
    """Write the rules of these objectives as a file for Prometheus."""
    groups: list[Value] = [_group(slo) for slo in slos]
    return dump({"groups": groups})


def _group(slo: Slo) -> Value:
    labels = {"kind": slo.kind, "slo": slo.name}
    budget = slo.objective.budget
    rules: list[Value] = [
        _record("drain_slo_target_ratio", f"vector({round(1 - budget, 7):g})", labels),
    ]
    for alert in _ALERTS:
        rules += (
            _record("drain_slo_burn_rate", _burn_rate(slo, window), labels | {"window": window})
            for window in (alert.short, alert.long)
        )
        rules.append(_record("drain_slo_late_jobs", _late(slo, alert.long), labels | {"window": alert.long}))
    rules += (_alert(slo, alert) for alert in _ALERTS)
    if slo.kind == "queue":
        rules.append(_standstill(slo))
    return {"name": f"drain-slo-{slo.kind}-{slo.name}", "rules": rules}


def _record(name: str, expression: str, labels: dict[str, str]) -> Value:
    return {"record": name, "expr": expression, "labels": labels}


def _burn_rate(slo: Slo, window: str) -> str:
    met, all_jobs = _sum(slo, "rate", window, within=True), _sum(slo, "rate", window)
    return f"(1 - {met} / ({all_jobs} > 0)) / {slo.objective.budget:.7g}"


def _late(slo: Slo, window: str) -> str:
    return f"{_sum(slo, 'increase', window)} - {_sum(slo, 'increase', window, within=True)}"


def _sum(slo: Slo, function: str, window: str, *, within: bool = False) -> str:
    """Write the sum of a counter of first starts over all workers: of all, or of those within the time."""
    name = f"drain_work_wait_seconds_{'bucket' if within else 'count'}"
    # The text of a bucket is that of a Python float, as `prometheus_client` writes it.
    of_bucket = f",le='{float(slo.objective.seconds)!r}'" if within else ""
    label = "queue" if slo.kind == "queue" else "job_name"
    return f"sum({function}({name}{{{label}={_quoted(slo.name)}{of_bucket}}}[{window}]))"


def _alert(slo: Slo, alert: _Alert) -> Value:
    threshold = alert.threshold(slo.objective.budget)
    of = f"kind={_quoted(slo.kind)},slo={_quoted(slo.name)}"
    conditions = [
        f"drain_slo_burn_rate{{{of},window='{alert.long}'}} > {threshold:g}",
        f"drain_slo_burn_rate{{{of},window='{alert.short}'}} > {threshold:g}",
        f"drain_slo_late_jobs{{{of},window='{alert.long}'}} > {_FEWEST_LATE - 0.5:g}",
    ]
    return {
        "alert": alert.name,
        "expr": " and on (kind, slo) ".join(conditions),
        "labels": {"severity": alert.severity, "kind": slo.kind, "slo": slo.name},
        "annotations": {
            "summary": f"{_subject(slo)} spends {alert.words}",
            "description": f"{_subject(slo)}: {slo.objective}. It burns "
            "{{ $value | humanize }} times as fast as its budget allows.",
            "runbook_url": f"{_RUNBOOK}#{alert.name.lower()}",
        },
    }


def _standstill(slo: Slo) -> Value:
    """Write the alert that no histogram can give: a job that never starts is counted by no worker."""
    queue = _quoted(slo.name)
    started = f"{_sum(slo, 'increase', _STANDSTILL)} > 0"
    paused = f"sum(drain_waiting_jobs{{queue={queue},cause='paused'}}) > 0"
    return {
        "alert": "DrainSLONothingStarts",
        "expr": f"max(drain_wait_seconds{{queue={queue}}}) > {slo.objective.seconds:g} unless on () {started} "
        f"unless on () {paused}",
        "for": _STANDSTILL,
        "labels": {"severity": "critical", "kind": slo.kind, "slo": slo.name},
        "annotations": {
            "summary": f"Jobs of {_subject(slo)} wait, and none has started for {_STANDSTILL}",
            "description": f"{_subject(slo)}: {slo.objective}. Its oldest job has waited for "
            "{{ $value | humanizeDuration }}.",
            "runbook_url": f"{_RUNBOOK}#drainslonothingstarts",
        },
    }


def _subject(slo: Slo) -> str:
    # Double braces are the templates of Prometheus; a name holds what its author liked.
    return f"{slo.kind} {slo.name}".replace("{{", "{ {")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    # Single quotes need no escape within the double ones of YAML.
    return f"'{escaped}'"


def dump(value: Mapping[str, Value]) -> str:
    """Write a mapping, in the order of its keys; each text in quotes, so that none is read as anything else."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Mapping[str, Value] | Sequence[Value]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _entry(f"{key}:", each, _STEP)
        return
    for each in value:
        if isinstance(each, Mapping) and each:
            first, *more = _lines(each)
            yield f"- {first}"
            yield from (_STEP + line for line in more)
        else:
            yield from _entry("-", each, _STEP)


def _entry(head: str, value: Value, step: str) -> Iterator[str]:
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        # Every text of JSON is a text of YAML.
        yield f"{head} {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"
        return
    yield head
    yield from (step + line for line in _lines(value))

"""Prometheus rules with two-window alerts.

A burn rate of 1 spends the budget in exactly its period; over 30 days, 14.4 spends 2 % in an hour, and 6 spends 5 % in
six hours. The shorter window ends an alert soon after its cause.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from drain.contrib.slo.declared import Slo

Value: TypeAlias = "Mapping[str, Value] | Sequence[Value] | str | int | float"

_STEP = "  "

_RUNBOOK = "docs/operations/slo.md"
# Late jobs required in the longer window, so that one at night does not page.
_FEWEST_LATE = 3
# Time without a start before a separate alert.
_STANDSTILL = "5m"


class _Alert(NamedTuple):
    """Alert on a burn rate.

    Attributes:
        factor: Burn rate above which it fires.
        most: Share of late jobs that suffices: a low objective's budget times the factor may exceed all jobs.
    """

    name: str
    factor: float
    most: float
    long: str
    short: str
    severity: str
    words: str

    def threshold(self, budget: float) -> float:
        return round(min(self.factor, self.most / budget), 6)


_ALERTS = (
    _Alert(
        "DrainSLOBurnsFast",
        14.4,
        0.9,
        "1h",
        "5m",
        "critical",
        "two percent of its 30-day budget in an hour",
    ),
    _Alert(
        "DrainSLOBurnsSlowly",
        6.0,
        0.75,
        "6h",
        "30m",
        "warning",
        "five percent of its 30-day budget in six hours",
    ),
)


def rules(slos: Sequence[Slo]) -> str:
    """Format the rules for Prometheus."""
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
    name = f"drain_work_wait_seconds_{'bucket' if within else 'count'}"
    # Bucket labels are Python floats, as `prometheus_client` writes them.
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
    """Alert on jobs that never start, which no histogram shows."""
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
            "summary": f"Jobs in {_subject(slo)} are waiting, and none has started for {_STANDSTILL}",
            "description": f"{_subject(slo)}: {slo.objective}. Its oldest job has waited for "
            "{{ $value | humanizeDuration }}.",
            "runbook_url": f"{_RUNBOOK}#drainslonothingstarts",
        },
    }


def _subject(slo: Slo) -> str:
    # Double braces are Prometheus templates.
    return f"{slo.kind} {slo.name}".replace("{{", "{ {")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    # Single quotes need no escape within YAML's double ones.
    return f"'{escaped}'"


def dump(value: Mapping[str, Value]) -> str:
    """Format a mapping as YAML, with quoted texts."""
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
        # Any JSON string is valid YAML.
        yield f"{head} {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"
        return
    yield head
    yield from (step + line for line in _lines(value))

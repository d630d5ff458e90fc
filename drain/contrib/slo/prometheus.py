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
# Time without a start, or without the end of a flow, before a separate alert.
_STANDSTILL = "5m"
_STANDSTILL_OF_FLOWS = "1h"


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
        rules.append(
            _record(
                "drain_slo_late_jobs", _late(slo, "increase", alert.long), labels | {"window": alert.long}
            )
        )
    rules += (_burns(slo, alert) for alert in _ALERTS)
    if slo.kind == "queue":
        rules.append(_nothing_starts(slo))
    elif slo.kind == "flow":
        rules.append(_nothing_finishes(slo))
    return {"name": f"drain-slo-{slo.kind}-{slo.name}", "rules": rules}


def _record(name: str, expression: str, labels: dict[str, str]) -> Value:
    return {"record": name, "expr": expression, "labels": labels}


def _burn_rate(slo: Slo, window: str) -> str:
    met = _met(slo, "rate", window)
    all_jobs = f"{met} + {_late(slo, 'rate', window)}" if slo.kind == "flow" else _count(slo, "rate", window)
    return f"(1 - {met} / ({all_jobs} > 0)) / {slo.objective.budget:.7g}"


def _late(slo: Slo, function: str, window: str) -> str:
    if slo.kind == "flow":
        # A failed flow may never end, and so never be in the histogram.
        return _sum(slo, function, window, "drain_late_flows_total")
    return f"{_count(slo, function, window)} - {_met(slo, function, window)}"


def _count(slo: Slo, function: str, window: str) -> str:
    return _sum(slo, function, window, f"{_histogram(slo)}_count")


def _met(slo: Slo, function: str, window: str) -> str:
    # Bucket labels are Python floats, as `prometheus_client` writes them.
    of_bucket = f",le='{float(slo.objective.seconds)!r}'"
    return _sum(slo, function, window, f"{_histogram(slo)}_bucket", of_bucket)


def _histogram(slo: Slo) -> str:
    return "drain_flow_seconds" if slo.kind == "flow" else "drain_work_wait_seconds"


def _sum(slo: Slo, function: str, window: str, name: str, more: str = "") -> str:
    label = "job_name" if slo.kind == "job" else slo.kind
    return f"sum({function}({name}{{{label}={_quoted(slo.name)}{more}}}[{window}]))"


def _burns(slo: Slo, alert: _Alert) -> Value:
    threshold = alert.threshold(slo.objective.budget)
    of = f"kind={_quoted(slo.kind)},slo={_quoted(slo.name)}"
    conditions = [
        f"drain_slo_burn_rate{{{of},window='{alert.long}'}} > {threshold:g}",
        f"drain_slo_burn_rate{{{of},window='{alert.short}'}} > {threshold:g}",
        f"drain_slo_late_jobs{{{of},window='{alert.long}'}} > {_FEWEST_LATE - 0.5:g}",
    ]
    return _alert(
        slo,
        alert.name,
        " and on (kind, slo) ".join(conditions),
        f"{_subject(slo)} spends {alert.words}",
        "It burns {{ $value | humanize }} times as fast as its budget allows.",
        severity=alert.severity,
    )


def _nothing_starts(slo: Slo) -> Value:
    """Alert on jobs that never start, which no histogram shows."""
    queue = _quoted(slo.name)
    started = f"{_count(slo, 'increase', _STANDSTILL)} > 0"
    paused = f"sum(drain_waiting_jobs{{queue={queue},cause='paused'}}) > 0"
    return _alert(
        slo,
        "DrainSLONothingStarts",
        f"max(drain_wait_seconds{{queue={queue}}}) > {slo.objective.seconds:g} unless on () {started} "
        f"unless on () {paused}",
        f"Jobs in {_subject(slo)} are waiting, and none has started for {_STANDSTILL}",
        "Its oldest job has waited for {{ $value | humanizeDuration }}.",
        pending=_STANDSTILL,
    )


def _nothing_finishes(slo: Slo) -> Value:
    """Alert on one late flow, which is too few for a burn rate."""
    late = f"{_late(slo, 'increase', _STANDSTILL_OF_FLOWS)} > 0"
    return _alert(
        slo,
        "DrainSLONothingFinishes",
        f"{late} unless on () {_count(slo, 'increase', _STANDSTILL_OF_FLOWS)} > 0",
        f"{_subject(slo)} is late, and none has finished for {_STANDSTILL_OF_FLOWS}",
        "Late within this time: {{ $value | humanize }}.",
    )


def _alert(
    slo: Slo,
    name: str,
    expression: str,
    summary: str,
    details: str,
    *,
    severity: str = "critical",
    pending: str = "",
) -> Value:
    return {
        "alert": name,
        "expr": expression,
        **({"for": pending} if pending else {}),
        "labels": {"severity": severity, "kind": slo.kind, "slo": slo.name},
        "annotations": {
            "summary": summary,
            "description": f"{_subject(slo)}: {slo.objective}. {details}",
            "runbook_url": f"{_RUNBOOK}#{name.lower()}",
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

"""One line of `drain check`, as Nagios and its successors read it; and the same as JSON."""

from __future__ import annotations

import math
from typing import Any

from drain.contrib.check.judging import Figure, Verdict
from drain.visible import visible

# Upper bound of the line before the numbers: Nagios cuts what is longer, at four kilobytes.
_LONGEST_TEXT = 1_000


def nagios_line(verdict: Verdict) -> str:
    """Format a verdict: the level, what is wrong, and the numbers behind a bar."""
    texts = "; ".join(finding.text for finding in verdict.findings) or _all_well(verdict)
    # A bar would begin the numbers.
    text = visible(texts).replace("|", "/")
    text = f"{text[: _LONGEST_TEXT - 1]}\u2026" if len(text) > _LONGEST_TEXT else text
    figures = " ".join(map(_figure, verdict.figures))
    return f"DRAIN {verdict.level.name} - {text}" + (f" | {figures}" if figures else "")


def check_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as an object of JSON types."""
    return {
        "level": verdict.level.name.lower(),
        "findings": [
            {"name": finding.name, "level": finding.level.name.lower(), "text": finding.text}
            for finding in verdict.findings
        ],
        "figures": {figure.name: figure.value for figure in verdict.figures},
    }


def _all_well(verdict: Verdict) -> str:
    values = {figure.name: figure.value for figure in verdict.figures}
    return f"{values.get('waiting', 0):,} waiting, {values.get('running', 0):,} running, an enqueuer leads"


def _figure(figure: Figure) -> str:
    limits = [_number(figure.threshold.warning), _number(figure.threshold.critical), "0"]
    return f"{figure.name}={_number(figure.value)}{figure.unit};{';'.join(limits)}"


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.3f}".rstrip("0").rstrip(".")

"""`drain check`."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import click

from drain.config import Settings
from drain.contrib.check.reading import look
from drain.contrib.check.thresholds import Figure, Finding, Level, Threshold, Thresholds, Verdict
from drain.errors import DrainError
from drain.formatting import seconds as seconds_of, visible
from drain.terminal.commandline import FiniteRange, settings_options

# Nagios cuts output at 4 kB.
_LONGEST_TEXT = 1_000

_DEFAULTS = Thresholds()
_LEVELS = {"critical": Level.CRITICAL, "warning": Level.WARNING, "ignore": Level.OK}
_NAMES = {level: name for name, level in _LEVELS.items()}


class _Threshold(click.ParamType):  # type: ignore[type-arg]
    """`CRITICAL`, or `WARNING,CRITICAL` with one optional."""

    name = "threshold"

    def __init__(self, *, is_time: bool) -> None:
        self._is_time = is_time

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Threshold:
        warning, comma, critical = str(value).partition(",")
        if not comma:
            warning, critical = "", warning
        try:
            found = Threshold(self._number(warning), self._number(critical))
        except ValueError:
            form = "30s,2m" if self._is_time else "10,100"
            self.fail(
                f"{value!r} is not a threshold: give CRITICAL, or WARNING,CRITICAL, such as {form}",
                param,
                ctx,
            )
        if found.warning is not None and found.critical is not None and found.warning > found.critical:
            self.fail(f"the warning threshold of {value!r} is above its critical one", param, ctx)
        return found

    def _number(self, text: str) -> float | None:
        text = text.strip()
        if not text:
            return None
        number = seconds_of(text) if self._is_time else float(text)
        if not 0 <= number < math.inf:
            raise ValueError
        return number


class _Command(click.Command):
    """Command with Nagios exit codes: 3 for unknown."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*args, **more)
        except click.UsageError as error:
            error.exit_code = Level.UNKNOWN  # type: ignore[misc]
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DrainError as error:
            _report(
                Verdict([Finding("settings", Level.UNKNOWN, str(error))]), ctx.params.get("form", "nagios")
            )


@click.command("check", cls=_Command, short_help="Check health once, for Nagios and scripts.")
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--for",
    "form",
    type=click.Choice(["nagios", "json"]),
    default="nagios",
    show_default=True,
    help="Output format.",
)
@click.option(
    "--max-lag",
    type=_Threshold(is_time=True),
    default="30s,2m",
    show_default=True,
    metavar="[WARNING,]CRITICAL",
    help="Maximum wait of a due job for the leader.",
)
@click.option(
    "--max-wait",
    type=_Threshold(is_time=True),
    default="5m,1h",
    show_default=True,
    metavar="[WARNING,]CRITICAL",
    help="Maximum wait of a due job for a worker, unless rules or pauses hold it.",
)
@click.option(
    "--max-dead",
    type=_Threshold(is_time=False),
    default="0,",
    show_default=True,
    metavar="[WARNING,]CRITICAL",
    help="Maximum number of dead jobs.",
)
@click.option(
    "--unattended",
    type=click.Choice(list(_LEVELS)),
    default=_NAMES[_DEFAULTS.unattended],
    show_default=True,
    help="Level for queues with jobs but no workers.",
)
@click.option(
    "--stalled",
    type=click.Choice(list(_LEVELS)),
    default=_NAMES[_DEFAULTS.stalled],
    show_default=True,
    help="Level for queues where jobs wait and none finished for a minute.",
)
@click.option(
    "--failing",
    type=click.Choice(list(_LEVELS)),
    default=_NAMES[_DEFAULTS.failing],
    show_default=True,
    help="Level for queues whose recent attempts all failed.",
)
@click.option(
    "--max-failed-flows",
    type=_Threshold(is_time=False),
    default="0,",
    show_default=True,
    metavar="[WARNING,]CRITICAL",
    help="Maximum number of failed flows.",
)
@click.option(
    "--timeout",
    type=FiniteRange(0.1, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum duration of the check.",
)
def check(
    settings: Settings,
    *,
    form: str,
    max_lag: Threshold,
    max_wait: Threshold,
    max_dead: Threshold,
    unattended: str,
    stalled: str,
    failing: str,
    max_failed_flows: Threshold,
    timeout: float,
) -> None:
    """Check health once, and print one line.

    Exit codes: 0 OK; 1 WARNING; 2 CRITICAL: a threshold is exceeded, there is no leader, a wait is overdue by a
    minute, a store is unavailable, or the schema version differs; 3 UNKNOWN: wrong usage, settings or rights. The
    inspection role suffices. Without a Redis URL, workers are not checked.

    A threshold is CRITICAL or WARNING,CRITICAL; either may be empty.

    \b
    drain check --max-lag 30s,2m --max-wait 5m,1h --max-dead 0,100
    drain check --for json --timeout 5 | jq .level
    """  # noqa: D301
    thresholds = Thresholds(
        *(max_lag, max_wait, max_dead, _LEVELS[unattended], _LEVELS[failing], _LEVELS[stalled]),
        failed_flows=max_failed_flows,
    )
    _report(look(settings, thresholds, timeout), form)


def _report(verdict: Verdict, form: str) -> None:
    """Print a verdict and exit without waiting for a hung thread."""
    click.echo(json.dumps(check_json(verdict)) if form == "json" else nagios_line(verdict))
    sys.stdout.flush()
    sys.exit(int(verdict.level))


def nagios_line(verdict: Verdict) -> str:
    """Format level, problem and numbers."""
    texts = "; ".join(finding.text for finding in verdict.findings) or _all_well(verdict)
    # A bar would start the numbers.
    text = visible(texts).replace("|", "/")
    text = f"{text[: _LONGEST_TEXT - 1]}\u2026" if len(text) > _LONGEST_TEXT else text
    figures = " ".join(map(_figure, verdict.figures))
    return f"DRAIN {verdict.level.name} - {text}" + (f" | {figures}" if figures else "")


def check_json(verdict: Verdict) -> dict[str, Any]:
    """Convert to JSON types."""
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
    return f"{values.get('waiting', 0):,} waiting, {values.get('running', 0):,} running, leader present"


def _figure(figure: Figure) -> str:
    limits = [_number(figure.threshold.warning), _number(figure.threshold.critical), "0"]
    return f"{figure.name}={_number(figure.value)}{figure.unit};{';'.join(limits)}"


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.3f}".rstrip("0").rstrip(".")

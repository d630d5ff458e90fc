"""Numbers, times and untrusted text for display."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from itertools import pairwise

# Seconds per unit.
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Format a duration: 4ms, 0.34s, 3m 20s, 4d 3h."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds == math.inf:
        return "ever"
    if seconds < 0.01:
        return f"{1000 * seconds:.0f}ms" if seconds >= 0.0005 else "0s"
    if seconds < 9.95:
        return f"{seconds:.2g}s"
    rest = round(seconds)
    for (unit, size), (smaller, smaller_size) in pairwise(_UNITS):
        if rest >= size:
            more = rest % size // smaller_size
            return f"{rest // size}{unit} {more}{smaller}" if more else f"{rest // size}{unit}"
    return f"{rest}s"


def figure(number: float) -> str:
    """Format a rate or ratio: 0.117, 14.4, 1,234."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:.3g}"


def seconds(text: str) -> float:
    """Parse a duration such as `90s` or `1h 30m`; ValueError if invalid."""
    parts = text.split()
    found = [re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(d|h|m|s)", part) for part in parts]
    if not parts or None in found:
        raise ValueError("a length of time is written as 90s, 10m, 1.5h, 2d or '1h 30m'")
    units = dict(_UNITS)
    return sum(float(match[1]) * units[match[2]] for match in found if match)


def relative(moment: datetime, now: datetime) -> str:
    """Format a relative time: `3m 20s ago`, `in 2h 5m`, `now`."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 0.5:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def clock(moment: datetime) -> str:
    """Format a time in UTC: `2026-11-22 01:31:07Z`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a count: `1 job`, `12,000 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


# Terminal controls (C0, DEL, C1), line separators, surrogates, bidirectional marks.
_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    # Invisible characters (Unicode's Default_Ignorable_Code_Point), which disguise names.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u2065\u206a-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_COMMANDS_BUT_LINES = re.compile(_COMMANDS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def visible(text: str, *, lines: bool = False) -> str:
    r"""Escape invisible and terminal control characters, such as `\x1b`; `lines` keeps newlines and tabs."""
    return (_COMMANDS_BUT_LINES if lines else _COMMANDS).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()

"""Formats of numbers and times."""

from __future__ import annotations

from datetime import datetime

_NONE = "–"


def count(number: int) -> str:
    """Format a count: 1,234,567."""
    return f"{number:,}"


def whole(number: float | None) -> str:
    """Format a count; None is 0."""
    return count(int(number or 0))


def count_or_dash(number: int) -> str:
    """Format a count; zero is a dash."""
    return count(number) if number else _NONE


def compact(number: float) -> str:
    """Shorten a round number: 200, 20k, 2.5M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:g}{unit}"
    return f"{number:g}"


def changed(text: str, percent: float | None) -> str:
    """Append a change in percent, if known: 1,234 (+12 %)."""
    if percent is None:
        return text
    whole = round(percent)
    return f"{text} ({whole:+,} %)" if whole else f"{text} (±0 %)"


def period_start(start: datetime, per: str) -> str:
    """Format a UTC start: 2026-11-01 12:00, or 2026-11-01."""
    return f"{start:%Y-%m-%d %H:%M}" if per == "hour" else f"{start:%Y-%m-%d}"


def share(fraction: float) -> str:
    """Format a percentage; zero is a dash."""
    if not fraction:
        return _NONE
    percent = fraction * 100
    return "<0.1 %" if percent < 0.1 else f"{percent:.1f} %"


def seconds(duration: float | None) -> str:
    """Format a duration; None is a dash."""
    if duration is None:
        return _NONE
    for limit, factor, unit in (
        (0.000_999_5, 1e6, "µs"),
        (0.9995, 1e3, "ms"),
        (99.95, 1, "s"),
        (5_970, 1 / 60, "min"),
        (171_000, 1 / 3600, "h"),
    ):
        if duration < limit:
            return f"{_digits(duration * factor)} {unit}"
    return f"{_digits(duration / 86_400)} d"


def _digits(number: float) -> str:
    return f"{number:.3g}" if number < 99.95 else f"{number:,.0f}"

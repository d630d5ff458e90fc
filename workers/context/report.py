"""Checks of progress reports."""

from __future__ import annotations

from drain.errors import ProgressError

Report = tuple[float, float | None, str | None]

MOST = 2**63 - 1


def checked(done: object, total: object, text: object) -> Report:
    """Convert to Python's own numbers, or raise ProgressError."""
    steps = _number("done", done)
    of = None if total is None else _number("total", total)
    if of is not None and steps > of:
        raise ProgressError(
            f"progress: {steps:g} done of a total of {of:g}: no more than the total can be done"
        )
    if text is not None and not isinstance(text, str):
        raise ProgressError(f"progress: text must be a str, not {text!r:.60}")
    return steps, of, text


def _number(name: str, value: object) -> float:
    kind = type(value)
    number: float
    try:
        if kind is bool or isinstance(value, str | bytes):
            raise TypeError
        # NumPy numbers, decimals and fractions too.
        number = value.__index__() if hasattr(kind, "__index__") else float(value)  # type: ignore[attr-defined, arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ProgressError(f"progress: {name} must be a number, not {value!r:.60}") from None
    # Excludes NaN.
    if not 0 <= number <= MOST:
        raise ProgressError(f"progress: {name} must lie between 0 and 2**63 - 1, not {value!r:.60}")
    return number

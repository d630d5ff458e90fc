"""Rules as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from drain import formatting
from drain.admission.rules import Rate, Rules, check_key
from drain.errors import ConfigError
from drain.formatting import visible

# Option -> rule.
OPTIONS = {
    "running": "running",
    "running_per_key": "running_per_key",
    "rate": "rate",
    "rate_per_key": "rate_per_key",
    "burst": "burst",
    "fair": "fair",
    "weights": "weights",
    "ordered": "ordered",
    "on_dead": "on_dead",
    "aging": "aging_seconds",
}


def with_options(rules: Rules, options: Mapping[str, Any]) -> Rules:
    """Change rules by options; None removes a rule.

    Args:
        options: By the names of `OPTIONS`, hyphens allowed. A rate may be text; `aging` a timedelta, seconds, or `10m`.

    Raises:
        ConfigError: An option is unknown or invalid, or rules contradict each other.
    """
    given = {_known(rules.queue, name): value for name, value in options.items()}
    if len(given) < len(options):
        twice = next(name for name in options if "-" in name and name.replace("-", "_") in options)
        raise ConfigError(f"queue {rules.queue}: {twice} is given twice, with - and with _")
    try:
        changed = replace(rules, **{OPTIONS[name]: _read(name, value) for name, value in given.items()})
    except ConfigError as error:
        prefix = f"queue {rules.queue}: "
        raise ConfigError(f"{prefix}{str(error).removeprefix(prefix)}") from None
    if given.get("on_dead") is not None and not changed.ordered:
        raise ConfigError(
            f"queue {rules.queue}: on_dead needs ordered: without it, no job waits for another of its key"
        )
    return changed


def as_options(rules: Rules) -> dict[str, Any]:
    """Active rules as options for JSON and TOML; `aging` in seconds."""
    without = Rules(rules.queue)
    values = {name: getattr(rules, field) for name, field in OPTIONS.items()}
    return {
        name: str(value) if isinstance(value, Rate) else dict(value) if name == "weights" else value
        for name, value in values.items()
        if value != getattr(without, OPTIONS[name])
    }


def _known(queue: str, name: str) -> str:
    option = name.replace("-", "_")
    if option in OPTIONS:
        return option
    import difflib

    close = difflib.get_close_matches(option, OPTIONS, 1)
    advice = f"did you mean {close[0]}?" if close else f"known rules: {', '.join(OPTIONS)}"
    raise ConfigError(f"queue {queue}: unknown rule '{visible(name)[:50]}'; {advice}")


def _read(name: str, value: Any) -> Any:
    if value is None:
        return getattr(Rules("off"), OPTIONS[name])
    if name in ("rate", "rate_per_key"):
        return _rate(name, value)
    if name == "aging":
        return _seconds(name, value)
    if name == "weights" and not isinstance(value, Mapping):
        raise ConfigError(f"weights must map keys to numbers, such as {{'acme': 3}}, not {value!r:.50}")
    return {check_key(key): weight for key, weight in value.items()} if name == "weights" else value


def _rate(name: str, value: Any) -> Rate:
    if isinstance(value, Rate):
        return value
    if not isinstance(value, str):
        raise ConfigError(
            f"{name} must be a string with a unit, such as '100/s' or '10/min', not {visible(repr(value))[:50]}"
        )
    return Rate.parse(value)


def _seconds(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return formatting.seconds(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ConfigError(f"{name}: {error}, not as '{visible(value)[:50]}'") from None

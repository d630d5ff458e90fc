"""Rules declared in a file, compared with the database."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from drain.admission.options import as_options, with_options
from drain.admission.rules import Rules
from drain.errors import ConfigError
from drain.formatting import visible
from drain.jobs.objectives import Objective

# A line that is not a rule; no table has it.
_SLO = "slo"


class Difference(NamedTuple):
    """Queue whose rules change."""

    queue: str
    before: Rules
    after: Rules

    @property
    def options(self) -> dict[str, tuple[object, object]]:
        """Changed options, before and after; None for an inactive rule."""
        before, after = as_options(self.before), as_options(self.after)
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        return {name: (before.get(name), after.get(name)) for name in names}


def read(text: str) -> dict[str, Rules]:
    """Read rules from TOML, a table per queue.

    Raises:
        ConfigError: Not TOML, or a rule is invalid or contradicts another.
    """
    tables = _tables(text)
    for queue, options in tables.items():
        _objective(queue, options)
    return {queue: _rules(queue, options) for queue, options in tables.items()}


def objectives(text: str) -> dict[str, Objective]:
    """Read objectives by queue from the same TOML, after `read`."""
    read(text)
    found = {queue: _objective(queue, options) for queue, options in _tables(text).items()}
    return {queue: objective for queue, objective in found.items() if objective is not None}


def _tables(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"it is not valid TOML: {visible(str(error))}") from None


def _objective(queue: str, options: object) -> Objective | None:
    if not isinstance(options, Mapping) or _SLO not in options:
        return None
    try:
        return Objective.parse(options[_SLO])
    except ValueError as error:
        raise ConfigError(f"queue {visible(queue)[:50]}: slo: {error}") from None


def _rules(queue: str, options: object) -> Rules:
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"'{visible(queue)[:50]}' is not in a table: rules belong under a queue name, as in [calls]"
        )
    try:
        return with_options(Rules(queue), {name: each for name, each in options.items() if name != _SLO})
    except ConfigError as error:
        # In TOML, [a.b] is a nested table.
        nested = any(isinstance(value, Mapping) and name != "weights" for name, value in options.items())
        advice = f'; quote a name with a dot, as in ["{visible(queue)}.b"]' if nested else ""
        raise ConfigError(f"{error}{advice}") from None


def differences(
    present: Mapping[str, Rules], wanted: Mapping[str, Rules], *, prune: bool
) -> list[Difference]:
    """Return queues with changing rules, by name; `prune` drops those of queues that the file does not name."""
    queues = sorted({*wanted, *(present if prune else ())})
    found = [
        Difference(queue, present.get(queue, Rules(queue)), wanted.get(queue, Rules(queue)))
        for queue in queues
    ]
    return [each for each in found if each.before != each.after]

"""Rules and objectives declared in a file. The rules are compared with the database."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from drain.admission.options import as_options, with_options
from drain.admission.rules import Rules
from drain.errors import ConfigError, StageError
from drain.formatting import visible
from drain.jobs.objectives import Objective, Verb
from drain.jobs.values import as_name

T = TypeVar("T")
# Has the tables of flows. A queue may have this name too.
_FLOW = "flow"
# A line that is not a rule; no table has it.
_SLO = "slo"
_WEIGHTS = "weights"


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


class Objectives(NamedTuple):
    """Objectives by name."""

    queues: Mapping[str, Objective]
    flows: Mapping[str, Objective]


def of_file(path: Path, reader: Callable[[str], T]) -> T:
    """Read a file with `read` or `objectives`.

    Raises:
        OSError: It cannot be read.
        ConfigError: As by the reader, with the path.
    """
    try:
        return reader(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{visible(str(path))}: not UTF-8 text") from None
    except ConfigError as error:
        raise ConfigError(f"{visible(str(path))}: {error}") from None


def read(text: str) -> dict[str, Rules]:
    """Read rules from TOML, a table per queue.

    Raises:
        ConfigError: Not TOML, a rule or objective is invalid, or rules contradict each other.
    """
    return _read(text)[0]


def objectives(text: str) -> Objectives:
    """Read objectives from the same TOML; those of flows are in tables such as `[flow.import]`."""
    return _read(text)[1]


def _read(text: str) -> tuple[dict[str, Rules], Objectives]:
    try:
        tables = tomllib.loads(text)
    # A number of 5,000 digits is a plain ValueError.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is not valid TOML: {visible(str(error))}") from None
    flows = _take_flows(tables)
    for flow, options in flows.items():
        _check_flow(flow, options)
    found = Objectives(_objectives("queue", tables, "start"), _objectives("flow", flows, "finish"))
    return {queue: _rules(queue, options) for queue, options in tables.items()}, found


def _take_flows(tables: dict[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Remove the tables of flows from those of queues."""
    given = tables.get(_FLOW)
    if not isinstance(given, dict):
        return {}
    names = [name for name, each in given.items() if isinstance(each, Mapping) and name != _WEIGHTS]
    flows = {name: given.pop(name) for name in names}
    if flows and not given:
        # Otherwise, the rules of a queue with this name would be removed.
        del tables[_FLOW]
    return flows


def _check_flow(flow: str, options: Mapping[str, Any]) -> None:
    try:
        as_name("the name", flow)
    except StageError as error:
        raise ConfigError(f"flow '{visible(flow)[:50]}': {error}") from None
    for name, value in options.items():
        if name != _SLO:
            unknown = (
                f"flow {visible(flow)[:50]}: unknown setting '{visible(name)[:50]}'; a flow has only slo"
            )
            raise ConfigError(f"{unknown}{_advice(f'{_FLOW}.', flow) if isinstance(value, Mapping) else ''}")


def _objectives(kind: str, tables: Mapping[str, Any], verb: Verb) -> dict[str, Objective]:
    found = {}
    for name, options in tables.items():
        if not isinstance(options, Mapping) or _SLO not in options:
            continue
        try:
            found[name] = Objective.parse(options[_SLO], verb)
        except ValueError as error:
            raise ConfigError(f"{kind} {visible(name)[:50]}: {_SLO}: {error}") from None
    return found


def _rules(queue: str, options: object) -> Rules:
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"'{visible(queue)[:50]}' is not in a table: rules belong under a queue name, as in [calls]"
        )
    try:
        return with_options(Rules(queue), {name: each for name, each in options.items() if name != _SLO})
    except ConfigError as error:
        nested = any(isinstance(value, Mapping) and name != _WEIGHTS for name, value in options.items())
        raise ConfigError(f"{error}{_advice('', queue) if nested else ''}") from None


def _advice(prefix: str, name: str) -> str:
    # In TOML, [a.b] is a nested table.
    return f'; quote a name with a dot, as in [{prefix}"{visible(name)[:50]}.b"]'


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

"""A module of the model: scenarios that must hold, and mutants that must not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from proof.checker import Scenario


class Mutant(NamedTuple):
    """A weakened statement or program, the scenario that catches it, and part of the violation's message."""

    broken: str
    scenario: str
    violated: str


class Module(NamedTuple):
    """A part of the protocol.

    Attributes:
        scenarios: Builders by name; called with the name of a mutant, or "".
        mutants: Each must be caught.
        harmless: Mutants that break nothing alone, since another mechanism repairs the damage.
    """

    name: str
    scenarios: Mapping[str, Callable[[str], Scenario]]
    mutants: tuple[Mutant, ...]
    harmless: tuple[Mutant, ...] = ()

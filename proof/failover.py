"""Failover to a replica that lags behind: any last commits are lost, flushed or not, and the sequences go back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from proof.checker import Scenario, World
from proof.delivery.scenarios import (
    claiming,
    draining,
    effect_with_finish,
    in_one_place,
    watermark_below_number,
)
from proof.delivery.statements import FINISHED, REQUESTS
from proof.module import Module, Mutant

# Tokens and numbers are given out again, to other claims and deliveries.
_AFTER_A_FAILOVER = (in_one_place, effect_with_finish, watermark_below_number)
_LAG = 8


def _all_kept_are_done(world: World) -> bool:
    """Ignore requests that the failover has lost: their applications are over."""
    rows = world.database.committed
    kept = (job for (table, job), state in rows.items() if table == REQUESTS and state == "staged")
    return all((FINISHED, job) in rows for job in kept)


def _failing_over(build: Callable[..., Scenario], broken: str, **options: object) -> Scenario:
    scenario = build(broken, crash=1, **options)

    def start() -> World:
        world = scenario.start()
        world.database.lag = _LAG
        return world

    return replace(scenario, start=start, invariants=_AFTER_A_FAILOVER, goal=_all_kept_are_done)


_DRAINING = "a failover while jobs are moved"
_CLAIMING = "a failover while jobs run"
_SCENARIOS: dict[str, Callable[[str], Scenario]] = {
    _DRAINING: partial(_failing_over, draining, jobs=1),
    _CLAIMING: partial(_failing_over, claiming, heartbeats=True, haste=1),
}
_MUTANTS = (
    Mutant("compare no worker", _CLAIMING, "an outdated claim"),
    Mutant("never look for lost deliveries", _CLAIMING, "out of reach"),
    Mutant("numbers are not recorded", _DRAINING, "not recorded"),
    Mutant("lead on after a lost connection", _DRAINING, "without the lock"),
    Mutant("commit a refused finish", _CLAIMING, "has taken effect"),
)

FAILOVER = Module("failover", _SCENARIOS, _MUTANTS)

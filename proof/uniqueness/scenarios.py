"""Scenarios, the invariants that hold in each of their states, and the mutants that break them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from proof.checker import Scenario, Violation, World
from proof.delivery.scenarios import is_pop, leases_expire
from proof.delivery.statements import DEAD, FINISHED, INFLIGHT, LAST_DELIVERY, PUSHED_UP_TO, REQUESTS, STAGED
from proof.module import Module, Mutant
from proof.postgres import Database, of_table
from proof.uniqueness.programs import application, leader, operator, worker
from proof.uniqueness.statements import AGAIN, Statements, Superseded


def no_request_lost(world: World) -> None:
    """Require that the jobs replaced by a job were committed before its last attempt."""
    rows = world.database.committed
    for request, row in of_table(rows, FINISHED).items():
        at, end = request, row
        while isinstance(end, Superseded) or (DEAD, at) in rows:
            if isinstance(end, Superseded):
                at = end.by
            elif rows[DEAD, at] < request % AGAIN:
                raise Violation("a request is lost: its job was cancelled")
            else:
                at = AGAIN + rows[DEAD, at]
            end = rows.get((FINISHED, at))
            if end is None and not any((table, at) in rows for table in (STAGED, INFLIGHT, DEAD)):
                raise Violation("a request is lost: its job was cancelled")
        seen = cast("tuple[int, ...]", world.notes.get(f"{at} {end}", ()))
        if end is not None and request % AGAIN not in seen:
            raise Violation("a request is lost: its job had started")


def _all_done(world: World) -> bool:
    rows = world.database.committed
    is_staged = all(row == "staged" for row in of_table(rows, REQUESTS).values())
    return is_staged and not of_table(rows, STAGED) and not of_table(rows, INFLIGHT)


def _one_waits(world: World) -> bool:
    rows = world.database.committed
    is_staged = all(row == "staged" for row in of_table(rows, REQUESTS).values())
    return is_staged and not of_table(rows, STAGED) and len(of_table(rows, INFLIGHT)) <= 1


def _start(jobs: int, faults: dict[str, int]) -> World:
    rows = {(REQUESTS, job): "new" for job in range(1, jobs + 1)}
    return World(Database(rows, {LAST_DELIVERY: 0, PUSHED_UP_TO: 0}), (), dict(faults))


def staging(
    broken: str,
    *keeps: str,
    workers: int = 1,
    fails: bool = False,
    once: bool = False,
    is_slow: bool = False,
    cancels: int = 0,
    killable: str = "",
    **faults: int,
) -> Scenario:
    """Stage a job per `keep` under one key while a leader settles and workers run them.

    Of more than two jobs, all but the first are staged together.
    """
    statements = Statements(broken)
    programs = {
        f"application {job}": application(statements, [job], keep) for job, keep in enumerate(keeps, 1)
    }
    if len(keeps) > 2:
        programs = {
            "application 1": application(statements, [1], keeps[0]),
            "application 2": application(statements, range(2, len(keeps) + 1), keeps[1]),
        }
    programs["leader"] = leader(statements)
    programs |= {
        name: worker(name, statements, fails=fails, once=once, is_slow=is_slow)
        for name in (f"worker {number}" for number in range(1, workers + 1))
    }
    if cancels:
        programs["operator"] = operator(statements, cancels)
    return Scenario(
        programs,
        partial(_start, len(keeps), faults),
        (no_request_lost,),
        _one_waits if once else _all_done,
        leases_expire,
        is_pop,
        lambda name: bool(killable) and name.startswith(killable),
    )


def _scenario(*keeps: str, **options: Any) -> Callable[[str], Scenario]:
    return lambda broken: staging(broken, *keeps, **options)


_SCENARIOS = {
    "keep the first": _scenario("first", "first"),
    "keep the last": _scenario("last", "last"),
    "two workers": _scenario("first", "last", workers=2),
    "claims take a while": _scenario("first", "first", is_slow=True, workers=2),
    "claims take a while, attempts fail": _scenario("first", "first", is_slow=True, fails=True, haste=1),
    "claims take a while, keep the last": _scenario("last", "last", is_slow=True, fails=True, haste=1),
    "attempts fail": _scenario("first", "first", fails=True),
    "attempts fail, keep the last": _scenario("last", "last", fails=True),
    "leases expire": _scenario("first", "first", expiry=1, haste=1, workers=2),
    "leases expire, keep the last": _scenario("last", "last", expiry=1, haste=1, workers=2),
    "a job is cancelled": _scenario("first", "first", cancels=1),
    "one of three jobs is cancelled": _scenario("first", "first", "first", cancels=1),
    "a job is cancelled, keep the last": _scenario("first", "last", cancels=2),
    "the leader is killed": _scenario("first", "last", killable="leader", kill=1),
    "a job returns, and no worker is left": _scenario("first", "first", fails=True, once=True),
    "a job returns, keep the last": _scenario("last", "last", fails=True, once=True),
}


_STARTED, _CANCELLED, _TWO, _GOAL = (
    "its job had started",
    "its job was cancelled",
    "two jobs wait",
    "out of reach",
)
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("nothing is fenced off", "leases expire", _STARTED),
        ("a running job stands", "keep the first", _STARTED),
        ("the standing job may have been claimed", "claims take a while", _STARTED),
        ("cancel forgets the request", "a job is cancelled", _CANCELLED),
        ("note no request", "a job is cancelled", _CANCELLED),
        ("note the earliest request", "one of three jobs is cancelled", _CANCELLED),
        ("jobs in flight do not count", "keep the first", _TWO),
        ("a delivered job stays although the last one is kept", "keep the last", _TWO),
        ("move without a decision", "keep the first", _TWO),
        ("never settle returned jobs", "a job returns, and no worker is left", _GOAL),
    )
)
UNIQUENESS = Module("uniqueness", _SCENARIOS, _MUTANTS)

"""The programs: an application, the leader, and workers. Each restarts if it is killed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from proof.atoms import Begin, Claimed, Commit, Execute, LowestListed, Pop, RollBack
from proof.checker import Atom, Program, World
from proof.delivery.statements import INFLIGHT, STAGED, Lead, Push, Statements
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    ConnectionLostError,
    DeadlockError,
    SerializationFailureError,
)

Steps = Generator[Atom, Any, Any]


class Choose:
    """What the leader does next, of all that has work; idle rounds change nothing and are left out."""

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def __str__(self) -> str:
        return "choose"

    def step(self, world: World, process: str) -> list[Any]:
        """Choose; to look for a delivery that a worker holds is hasty, a fault."""
        rows = world.database.committed
        jobs = {at: row for (table, at), row in rows.items() if table == INFLIGHT}
        lapsed = world.database.lapsed if self.broken != "redeliver a valid lease" else jobs
        held = set(world.held.values()) if not world.faults.get("haste") else set()
        gone = [(at, row.delivery) for at, row in jobs.items() if not row.is_claimed and not row.waits]
        lost = [each for each in gone if each not in world.queue and each not in held]
        if any(each in world.held.values() for each in lost):
            world.spend("haste")
        found = {
            "staged": any(table == STAGED for table, _ in rows),
            "retries": any(row.waits for row in jobs.values()) and self.broken != "never redeliver retries",
            "leases": any(row.is_claimed and at in lapsed for at, row in jobs.items()),
            "lost": bool(lost) and self.broken != "never look for lost deliveries",
        }
        return [name for name, is_found in found.items() if is_found]


def application(statements: Statements, *jobs: int) -> Program:
    """Stage jobs, each in its own transaction."""

    def run() -> Steps:
        for job in jobs:
            yield Begin(READ_COMMITTED)
            yield statements.stage(job)
            if statements.broken == "push in the application's transaction":
                yield Push(((job, 1),))
            if statements.broken == "push after a rollback":
                yield RollBack()
                yield Push(((job, 1),))
                continue
            yield Commit()

    return run


def leader(statements: Statements, batch: int = 1) -> Program:  # noqa: C901
    """Lead: move, push, redeliver."""

    def run() -> Steps:
        last, pushed = yield Lead(locks=statements.broken != "lead without the lock")
        while True:
            try:
                yield from lead(last, pushed)
            except ConnectionLostError:
                if statements.broken != "lead on after a lost connection":
                    raise

    def lead(last: int, pushed: int) -> Steps:
        if pushed < last and statements.broken != "take over without pushing again":
            last, _ = yield from push_again(statements, last, pushed, above=pushed, up_to=last)
            # A row that was locked is found later, since it is in no list.
            pushed = last
        while True:
            work = yield Choose(statements.broken)
            if work == "staged":
                last, pushed = yield from _drain(statements, batch, last, pushed)
            elif work == "lost":
                lowest = yield LowestListed()
                up_to = pushed if lowest is None else lowest - 1
                last, pushed = yield from push_again(statements, last, pushed, above=0, up_to=up_to)
            elif work == "leases":
                last, pushed = yield from push_again(
                    statements, last, pushed, statements.redeliver_leases(last)
                )
            else:
                last, pushed = yield from push_again(
                    statements, last, pushed, statements.redeliver_retries(last)
                )

    return run


def _drain(statements: Statements, batch: int, last: int, pushed: int) -> Steps:
    yield Begin(REPEATABLE_READ)
    jobs = yield statements.read_due(batch)
    if not jobs:
        yield RollBack()
        return last, pushed
    deliveries = tuple((job, number) for number, job in enumerate(jobs, last + 1))
    try:
        if statements.broken == "push before the commit":
            yield Push(deliveries)
        yield statements.move(jobs, last, pushed)
        yield Commit(is_durable=False)
    except SerializationFailureError:
        yield RollBack()
        return last, pushed
    last += len(jobs)
    if statements.broken not in ("push before the commit", "forget the push"):
        yield Push(deliveries)
    yield statements.record_progress(last, last)
    return last, last


def push_again(
    statements: Statements,
    last: int,
    pushed: int,
    renumber: Execute | None = None,
    *,
    above: int = 0,
    up_to: int = 0,
) -> Steps:
    """Renumber, by default unclaimed deliveries in (above, up_to], and push."""
    yield Begin(READ_COMMITTED)
    found = yield renumber or statements.redeliver_unclaimed(last, above, up_to)
    if not found:
        yield RollBack()
        return last, pushed
    number = max(last, *(number for _, number in found))
    if statements.broken != "renumbering is not recorded":
        yield statements.record_progress(number, pushed)
    yield Commit(is_durable=False)
    yield Push(found)
    yield statements.record_progress(number, number)
    return number, number


def worker(name: str, statements: Statements, *, fails: bool = False, heartbeats: bool = False) -> Program:
    """Claim, run in a transaction, finish.

    Args:
        fails: The first attempt of a job fails, and is retried.
    """

    def run() -> Steps:
        while True:
            job, delivery = yield Pop()
            for claim in (yield statements.claim(job, delivery)):
                if heartbeats and not (yield statements.extend(claim, name)):
                    continue
                if fails and claim.token == 1:
                    yield statements.retry_later(claim, name)
                else:
                    yield from _run_job(name, statements, claim)

    return run


def _run_job(name: str, statements: Statements, claim: Claimed) -> Steps:
    broken = statements.broken
    # Once more after a lost connection: the commit is in doubt.
    for _ in range(2):
        try:
            yield Begin(READ_COMMITTED)
            yield statements.change(claim.job)
            if broken == "finish in a separate transaction":
                yield Commit()
            is_finished = yield statements.finish(claim, name)
            if broken == "finish in a separate transaction":
                return
            if is_finished or broken == "commit a refused finish":
                yield Commit()
            else:
                yield RollBack()
            return
        except ConnectionLostError:
            continue
        except DeadlockError:
            yield RollBack()
            return

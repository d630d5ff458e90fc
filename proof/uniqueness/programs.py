"""Applications, the leader, which settles before it moves, workers and an operator."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from proof.atoms import Begin, Claimed, Commit, Execute, Pop, RollBack
from proof.checker import Atom, Program, World
from proof.delivery.programs import push_again
from proof.delivery.statements import INFLIGHT, STAGED, Lead, Push
from proof.postgres import READ_COMMITTED, REPEATABLE_READ, SerializationFailureError, of_table
from proof.uniqueness.statements import Claim, Statements, decide, waiting_in_flight

Steps = Generator[Atom, Any, Any]


class Choose(NamedTuple):
    """What the leader does next, of all that has work."""

    broken: str

    def __str__(self) -> str:
        return "choose"

    def step(self, world: World, process: str) -> list[Any]:
        """Choose; to settle again while a worker claims is hasty, a fault, since it may go on forever."""
        rows = world.database.committed
        jobs = of_table(rows, INFLIGHT)
        held = {*world.queue, *world.held.values()}
        returned = len(waiting_in_flight(rows)) > 1 and self.broken != "never settle returned jobs"
        if returned and any(world.database.owner((INFLIGHT, at), process) for at in jobs):
            returned = world.faults.get("haste", 0) > 0
            if returned:
                world.spend("haste")
        found = {
            "staged": bool(of_table(rows, STAGED)),
            "returned": returned,
            "leases": any(row.is_claimed and at in world.database.lapsed for at, row in jobs.items()),
            "retries": any(row.waits for row in jobs.values()),
            "lost": any(
                not row.is_claimed and not row.waits and (at, row.delivery) not in held
                for at, row in jobs.items()
            ),
        }
        return [name for name, is_found in found.items() if is_found]


def leader(statements: Statements) -> Program:
    """Lead: settle and move, settle returned jobs, redeliver."""

    def run() -> Steps:
        last, pushed = yield Lead()
        skips = False
        while True:
            work = yield Choose(statements.broken)
            delivery = statements.delivery
            if work == "staged":
                last, skips = yield from _drain(statements, last, skips_locked=skips)
                pushed = last
            elif work == "returned":
                yield Begin(READ_COMMITTED)
                yield from _settle(statements)
                yield Commit(is_durable=False)
            elif work == "lost":
                last, pushed = yield from push_again(delivery, last, pushed, above=0, up_to=last)
            else:
                renumber = (
                    delivery.redeliver_leases(last) if work == "leases" else delivery.redeliver_retries(last)
                )
                last, pushed = yield from push_again(delivery, last, pushed, renumber)

    return run


def _drain(statements: Statements, last: int, *, skips_locked: bool) -> Steps:
    """Return the last number, and whether to skip locked rows from now on."""
    yield Begin(READ_COMMITTED if skips_locked else REPEATABLE_READ)
    try:
        jobs = yield statements.read_due(skips_locked=skips_locked)
        waiting, stands = (yield from _settle(statements)) if jobs else ((), 0)
        standing = tuple(
            job for job in jobs if job == stands or statements.broken == "move without a decision"
        )
        if standing:
            yield statements.move(standing, last, waiting)
        yield Commit(is_durable=False)
    except SerializationFailureError:
        yield RollBack()
        return last, True
    deliveries = tuple((job, number) for number, job in enumerate(standing, last + 1))
    last += len(deliveries)
    if deliveries:
        yield Push(deliveries)
    yield statements.delivery.record_progress(last, last)
    return last, skips_locked


def _settle(statements: Statements) -> Steps:
    """Decide, and write the decision; return what waited in flight, and the job that stands."""
    candidates, waiting = yield statements.read_candidates()
    claimed = [each.id for each in candidates if each.was_claimed and not each.is_staged]
    fenced = (yield statements.fence(claimed)) if claimed else ()
    candidates = tuple(each for each in candidates if each.id in fenced or each.id not in claimed)
    if not candidates or statements.broken == "move without a decision":
        return waiting, 0
    verdict = decide(candidates, statements.broken)
    free: list[int] = []
    for table, gone in ((STAGED, verdict.staged), (INFLIGHT, verdict.in_flight)):
        free += (yield statements.lock(table, gone)) if gone else ()
    verdict = verdict._replace(
        staged=tuple(at for at in verdict.staged if at in free),
        in_flight=tuple(at for at in verdict.in_flight if at in free),
    )
    if verdict.staged or verdict.in_flight:
        staged = yield statements.stand(STAGED, verdict)
        standing = staged or (yield statements.stand(INFLIGHT, verdict))
        if standing or statements.broken == "the standing job may have been claimed":
            for table, gone in ((STAGED, verdict.staged), (INFLIGHT, verdict.in_flight)):
                if gone:
                    yield statements.supersede(table, gone, verdict.stands)
    return waiting, verdict.stands


def application(statements: Statements, jobs: Sequence[int], keep: str) -> Program:
    """Stage jobs in one transaction."""

    def run() -> Steps:
        yield Begin(READ_COMMITTED)
        for job in jobs:
            yield statements.stage(job, keep)
        yield Commit()

    return run


def worker(
    name: str, statements: Statements, *, fails: bool = False, once: bool = False, is_slow: bool = False
) -> Program:
    """Claim and finish.

    Args:
        fails: The first attempt fails, and is retried.
        once: The worker stops after one attempt.
        is_slow: Others see the claim's lock before its commit.
    """

    def run() -> Steps:
        while True:
            job, delivery = yield Pop()
            if is_slow:
                yield Begin(READ_COMMITTED)
            claims = yield Claim(statements.delivery.claim(job, delivery).statement)
            if is_slow:
                yield Commit()
            for claim in claims:
                yield end(claim)
                if once:
                    return

    def end(claim: Claimed) -> Execute:
        if fails and claim.token == 1:
            return statements.delivery.retry_later(claim, name)
        return statements.delivery.finish(claim, name)

    return run


def operator(statements: Statements, job: int) -> Program:
    """Cancel a job in a transaction: staged, then in flight."""

    def run() -> Steps:
        yield Begin(READ_COMMITTED)
        yield statements.cancel(STAGED, job)
        yield statements.cancel(INFLIGHT, job)
        yield Commit()

    return run

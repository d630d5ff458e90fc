"""Steps: a step's result is the last statement of the step's own transaction, under the current token.

Without a row, the step rolls back. A later attempt claims, then reads the results, and leaves those steps out.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from functools import partial
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Claimed, Commit, Execute, RollBack, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.module import Module, Mutant
from proof.postgres import (
    READ_COMMITTED,
    ConnectionLostError,
    Database,
    DeadlockError,
    Statement,
    UniqueViolationError,
    Writer,
)

Commands = Generator[Atom, Any, Any]
INFLIGHT, FINISHED, STEPS, ACCOUNTS = "inflight_jobs", "finished_jobs", "job_steps", "accounts"
# Session of a lost connection whose COMMIT the server has not read yet.
UNDER_WAY = "commit under way"


class Held(NamedTuple):
    """Row of `inflight_jobs`; `known`, for the invariants: the steps recorded before this claim."""

    token: int = 0
    worker: str = ""
    known: frozenset[int] = frozenset()


class Steps:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def claim(self, job: int) -> Execute:
        """Claim the job, if unclaimed or after its lease, by `drain.tables.claims.CLAIM`."""

        def claim(writer: Writer, row_id: int, row: Held) -> Claimed:
            writer.database.lapsed -= {row_id}
            known = frozenset(step for table, step in writer.database.committed if table == STEPS)
            writer.update(INFLIGHT, row_id, Held(row.token + 1, writer.process, known))
            return Claimed(row_id, row.token + 1)

        def is_free(at: int, row: Held, lapsed: Collection[int]) -> bool:
            return at == job and (not row.token or at in lapsed)

        return Execute(Statement("drain.tables.claims.CLAIM", INFLIGHT, is_free, claim))

    def done(self) -> Execute:
        """Read the steps that have a result."""
        return Execute(
            Statement("drain.tables.steps.READ", STEPS, lambda *_: True, lambda w, at, row: at, reads=True)
        )

    def change(self, step: int) -> Execute:
        """Write in the step's transaction: the effect that must happen once."""
        add = lambda writer, at, row: writer.update(ACCOUNTS, at, row + 1)  # noqa: E731
        return Execute(Statement("", ACCOUNTS, ids([step]), add))

    def look(self, claim: Claimed, process: str) -> Execute:
        """Read whether the claim is current, without a lock."""
        return Execute(
            Statement("", INFLIGHT, self._is_current(claim, process), lambda w, at, row: True, reads=True)
        )

    def record(self, step: int, claim: Claimed, process: str) -> Execute:
        """Insert the result, if the claim is current; no answer otherwise. FOR KEY SHARE stops no claim."""

        def insert(writer: Writer, row_id: int, row: Held) -> bool:
            if self.broken == "steps without a primary key" and (STEPS, step) in writer.database.see(process):
                writer.update(STEPS, step, claim.token)
            else:
                writer.insert(STEPS, step, claim.token)
            return True

        where = self._is_current(claim, process)
        if self.broken == "check the token, then write":
            where = ids([claim.job])
        shares_key = self.broken == "lock the job for key share"
        sql = "schema.sql: drain_record_step"
        return Execute(Statement(sql, INFLIGHT, where, insert, shares_key=shares_key))

    def finish(self, claim: Claimed, process: str) -> Execute:
        """Finish the job under its token, by `schema.sql: drain_finish`."""

        def finish(writer: Writer, row_id: int, row: Held) -> None:
            writer.delete(INFLIGHT, row_id)
            writer.insert(FINISHED, row_id, row)

        return Execute(Statement("", INFLIGHT, self._is_current(claim, process), finish))

    def _is_current(self, claim: Claimed, process: str) -> Any:
        return lambda at, row, lapsed: (at, row.token, row.worker) == (claim.job, claim.token, process)


class Claim:
    """Wait until the job can be claimed, and claim it."""

    def __init__(self, statement: Execute, job: int) -> None:
        self.statement = statement
        self.job = job

    def __repr__(self) -> str:
        return f"claim job {self.job}"

    def step(self, world: World, process: str) -> Any:
        """Claim."""
        database = world.database
        row = database.committed.get((INFLIGHT, self.job))
        if row is None or (row.token and self.job not in database.lapsed):
            return []
        if process not in world.held:
            world.held = {**world.held, process: (self.job, 0)}
        return self.statement.step(world, process)


def worker(name: str, statements: Steps, steps: Collection[int]) -> Program:
    """Claim, run the steps that have no result, finish."""

    def run() -> Commands:
        while True:
            if statements.broken == "read the results before the claim":
                done = yield statements.done()
            for claim in (yield Claim(statements.claim(1), 1)):
                if statements.broken != "read the results before the claim":
                    done = yield statements.done()
                is_current = True
                for step in steps:
                    if is_current and step not in done:
                        is_current = yield from _run_step(name, statements, step, claim)
                if is_current:
                    yield statements.finish(claim, name)

    return run


def _run_step(name: str, statements: Steps, step: int, claim: Claimed) -> Commands:  # noqa: C901, PLR0911, PLR0912
    """Run a step; return False if the claim is outdated."""
    broken = statements.broken
    while True:
        try:
            if broken == "the result commits first":
                if not (yield statements.record(step, claim, name)):
                    return False
                yield Begin(READ_COMMITTED)
                yield statements.change(step)
                yield Commit()
                return True
            yield Begin(READ_COMMITTED)
            if broken == "check the token, then write" and not (yield statements.look(claim, name)):
                yield RollBack()
                return False
            yield statements.change(step)
            if broken == "the result commits later":
                yield Commit()
            is_current = yield statements.record(step, claim, name)
            if broken == "the result commits later":
                return bool(is_current)
            if not is_current and broken != "commit a refused step":
                yield RollBack()
                return False
            if (yield Act("send COMMIT", _may_lose)) == "lost":
                yield Act("the connection breaks", _hand_over)
            else:
                yield Commit()
            return bool(is_current)
        except UniqueViolationError:
            # The commit that was in doubt has arrived.
            yield RollBack()
        except ConnectionLostError:
            pass
        except DeadlockError:
            yield RollBack()
            return False
        # In doubt: a result is final, its absence is not, since COMMIT may still be under way.
        if step in (yield statements.done()):
            return True


def _may_lose(world: World, process: str) -> list[Any]:
    is_free = world.faults.get("doubt") and UNDER_WAY not in world.database.transactions
    return ["answered", "lost"] if is_free else ["answered"]


def _hand_over(world: World, process: str) -> list[Any]:
    """Let the server's session go on without its client."""
    world.spend("doubt")
    transactions = world.database.transactions
    transactions[UNDER_WAY] = transactions.pop(process)
    raise ConnectionLostError(process)


def server() -> Commands:
    """Commit or end the session of a client that is gone, at any time."""

    def is_there(world: World, process: str) -> list[Any]:
        return [True, False] if process in world.database.transactions else []

    while True:
        if (yield Act("notice", is_there)):
            yield Commit()
        else:
            yield RollBack()


def step_with_effect(world: World) -> None:
    """Require that a step's writes are committed once, with its result."""
    rows = world.database.committed
    for (table, step), effects in rows.items():
        if table == ACCOUNTS and effects != int((STEPS, step) in rows):
            state = "" if (STEPS, step) in rows else "un"
            raise Violation(f"the {state}recorded step {step} has happened {effects} times")


def only_the_current_token(world: World) -> None:
    """Require that a step is recorded before any later claim."""
    rows = world.database.committed
    for (table, _), row in rows.items():
        if table in (INFLIGHT, FINISHED):
            for (kind, step), token in rows.items():
                if kind == STEPS and token < row.token and step not in row.known:
                    raise Violation(f"step {step} is recorded under an outdated token")


def leases_expire(world: World) -> Iterator[tuple[str, bool, World]]:
    """Expire the lease of each claimed job; while its worker is busy, this is a fault."""
    for (table, job), row in world.database.committed.items():
        if table == INFLIGHT and row.token and job not in world.database.lapsed:
            is_busy = row.worker in world.held
            if is_busy and not world.faults.get("expiry"):
                continue
            after = world.copy()
            if is_busy:
                after.spend("expiry")
            after.database.lapsed |= {job}
            yield f"the lease of job {job} expires", is_busy, after


def running(broken: str, *, steps: int = 2, **faults: int) -> Scenario:
    """Two workers run a job of some steps."""
    statements = Steps(broken)
    numbers = tuple(range(1, steps + 1))
    programs = {name: worker(name, statements, numbers) for name in ("worker 1", "worker 2")}
    if "doubt" in faults:
        programs[UNDER_WAY] = server

    def start() -> World:
        rows: dict[tuple[str, int], object] = {(ACCOUNTS, step): 0 for step in numbers}
        return World(Database({(INFLIGHT, 1): Held(), **rows}, {}), faults=dict(faults))

    return Scenario(
        programs,
        start,
        (step_with_effect, only_the_current_token),
        lambda world: (FINISHED, 1) in world.database.committed,
        leases_expire,
        lambda atom: isinstance(atom, Claim),
        lambda name: name.startswith("worker"),
    )


_EXPIRES, _KILLED = "a lease expires during a step", "a worker is killed between steps"
_DOUBT = "COMMIT of a step is under way when its client is gone"
_SCENARIOS = {
    _EXPIRES: partial(running, expiry=2),
    _KILLED: partial(running, expiry=1, kill=1),
    "an answer of a step is lost": partial(running, steps=1, expiry=1, answer=1),
    _DOUBT: partial(running, steps=1, expiry=1, doubt=1),
}
_EFFECT, _TOKEN = "has happened", "under an outdated token"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("the result commits later", _KILLED, _EFFECT),
        ("the result commits first", _KILLED, _EFFECT),
        ("commit a refused step", _EXPIRES, _EFFECT),
        ("steps without a primary key", _DOUBT, _EFFECT),
        ("check the token, then write", _EXPIRES, _TOKEN),
        ("lock the job for key share", _EXPIRES, _TOKEN),
    )
)
_HARMLESS_ALONE = (Mutant("read the results before the claim", _EXPIRES, ""),)

STEPPING = Module("steps", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)

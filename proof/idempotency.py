"""Idempotency keys: staging again under a key returns the first job, until the key expires.

All requests have one key. A row of `idempotency_keys` names its job; the key expires with the job's number in `lapsed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

from proof.atoms import Act, Begin, Commit, Execute, RollBack, Select, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.delivery.statements import REQUESTS, STAGED
from proof.module import Module, Mutant
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    Database,
    Rows,
    SerializationFailureError,
    Statement,
    Writer,
)

KEYS = "idempotency_keys"
Steps = Generator[Atom, Any, None]
# Added to the number of a job whose key expired an hour ago.
_HOUR = 100


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def reserve(self, job: int) -> Execute:
        """Take the key and insert the job, as the first statement of `schema.sql: drain_stage_once`."""

        def reserve(writer: Writer, row_id: int, row: Any) -> None:
            known = writer.snapshot.get((KEYS, 1))
            if known is not None and known not in writer.database.lapsed:
                return
            if self._take(writer, job) or self.broken == "stage although the key is taken":
                if self.broken != "stage in another transaction":
                    writer.insert(STAGED, job, "staged")
            elif self.broken == "read the key in the same snapshot" and known is None:
                raise Violation("staging returns no job")

        return Execute(Statement("drain_stage_once", REQUESTS, ids([job]), reserve, reads=True))

    def _take(self, writer: Writer, job: int) -> bool:
        if self.broken == "look, then insert":
            writer.update(KEYS, 1, job)
            return True
        is_over: Callable[[int], bool] = lambda kept: kept in writer.database.lapsed  # noqa: E731
        return writer.insert_or_update(KEYS, 1, job, is_over)

    def stage(self, job: int) -> Execute:
        """Insert the job if it has the key; a mutant alone does."""

        def stage(writer: Writer, row_id: int, row: Any) -> None:
            if writer.database.see(writer.process)[KEYS, 1] == job:
                writer.insert(STAGED, job, "staged")

        return Execute(Statement("", REQUESTS, ids([job]), stage, reads=True))

    def read_key(self) -> Select:
        """Return the key's job, as the second statement of the function does, with a new snapshot."""

        def read(rows: Rows) -> int:
            if (KEYS, 1) not in rows:
                raise Violation("staging returns no job")
            return cast("int", rows[KEYS, 1])

        return Select("read the key", read)

    def delete_expired(self) -> Execute:
        """Delete the key an hour after it expired."""
        slack = 0 if self.broken == "delete keys that have just expired" else _HOUR

        def is_over(at: int, job: int, lapsed: Collection[int]) -> bool:
            return job + slack in lapsed

        def delete(writer: Writer, row_id: int, row: Any) -> None:
            writer.delete(KEYS, row_id)

        return Execute(Statement("drain.tables.idempotency.DELETE_EXPIRED", KEYS, is_over, delete))


class Answer(NamedTuple):
    """COMMIT; the application now knows the job."""

    job: int

    def step(self, world: World, process: str) -> list[Any]:
        """Commit."""
        world.database.commit(process, is_durable=True)
        world.notes = {**world.notes, process: self.job}
        return [None]


def application(statements: Statements, job: int, isolation: str, *, gives_up: bool) -> Program:
    """Stage a job under the key; `gives_up`: roll back the first time."""
    broken = statements.broken

    def run() -> Steps:
        tries = 2 if gives_up else 1
        while tries:
            yield Begin(isolation)
            try:
                yield statements.reserve(job)
                if broken == "stage in another transaction":
                    yield Commit()
                    yield Begin(isolation)
                    yield statements.stage(job)
                found = yield statements.read_key()
            except SerializationFailureError:
                yield RollBack()
                continue
            tries -= 1
            if tries:
                yield RollBack()
            else:
                yield Answer(job if broken == "return the number that was reserved" else found)

    return run


def cleaner(statements: Statements) -> Program:
    """Delete the key when it has expired."""

    def run() -> Steps:
        while True:
            yield Act("wait for an expired key", _when_over)
            yield statements.delete_expired()

    return run


def _when_over(world: World, process: str) -> list[Any]:
    job = world.database.committed.get((KEYS, 1))
    return [None] if job in world.database.lapsed else []


def one_job_per_key(world: World) -> None:
    """Require one job for each time that the key was free."""
    jobs = [at for table, at in world.database.committed if table == STAGED]
    expired = [at for at in world.database.lapsed if at < _HOUR]
    if len(jobs) > len(expired) + 1:
        raise Violation("a key has two jobs")


def answers_exist(world: World) -> None:
    """Require that each application was answered with a committed job."""
    for job in world.notes.values():
        if (STAGED, job) not in world.database.committed:
            raise Violation("a job is returned that does not exist")


def _all_answered(applications: int, world: World) -> bool:
    return len(world.notes) == applications


def _key_expires(world: World) -> Iterator[tuple[str, bool, World]]:
    """Expire the key; an hour later, each statement that had seen it has ended."""
    job = world.database.committed.get((KEYS, 1))
    for number in world.database.lapsed:
        if number < _HOUR and number + _HOUR not in world.database.lapsed and not world.database.transactions:
            after = world.copy()
            after.database.lapsed |= {number + _HOUR}
            yield "an hour passes", False, after
    if job is not None and job not in world.database.lapsed and world.faults.get("expiry"):
        after = world.copy()
        after.spend("expiry")
        after.database.lapsed |= {job}
        yield "the key expires", True, after


def _start(applications: int, faults: Mapping[str, int]) -> World:
    rows = {(REQUESTS, job): "new" for job in range(1, applications + 1)}
    return World(Database(rows, {}), (), dict(faults))


def staging(
    broken: str,
    *,
    applications: int = 2,
    isolation: str = READ_COMMITTED,
    gives_up: bool = False,
    killable: bool = False,
    **faults: int,
) -> Scenario:
    """Stage jobs under one key while it may expire."""
    statements = Statements(broken)
    programs = {
        f"application {job}": application(statements, job, isolation, gives_up=gives_up and job == 1)
        for job in range(1, applications + 1)
    }
    programs["leader"] = cleaner(statements)
    return Scenario(
        programs,
        partial(_start, applications, faults),
        (one_job_per_key, answers_exist),
        partial(_all_answered, applications),
        _key_expires,
        lambda atom: False,
        lambda name: killable,
    )


_SCENARIOS: Mapping[str, Callable[[str], Scenario]] = {
    "two requests": partial(staging),
    "two requests, one gives up": partial(staging, gives_up=True),
    "an application is killed": partial(staging, killable=True, kill=2),
    "three requests, one gives up": partial(staging, applications=3, gives_up=True),
    "one gives up, at repeatable read": partial(staging, isolation=REPEATABLE_READ, gives_up=True),
    "the key expires": partial(staging, applications=3, expiry=1),
    "the key expires, at repeatable read": partial(staging, isolation=REPEATABLE_READ, expiry=1),
}
_TWO, _NONE, _UNKNOWN = "a key has two jobs", "returns no job", "does not exist"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("look, then insert", "two requests", _TWO),
        ("stage although the key is taken", "two requests", _TWO),
        ("read the key in the same snapshot", "two requests", _NONE),
        ("delete keys that have just expired", "the key expires", _NONE),
        ("return the number that was reserved", "two requests", _UNKNOWN),
        ("stage in another transaction", "two requests, one gives up", _UNKNOWN),
    )
)
IDEMPOTENCY = Module("idempotency", _SCENARIOS, _MUTANTS)

"""Atoms that several modules share: transactions, statements, and the list in Redis."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from proof.checker import World
from proof.postgres import SHARED, Blocked, Rows, Statement, Writer


class Begin(NamedTuple):
    """BEGIN."""

    isolation: str

    def step(self, world: World, process: str) -> list[Any]:
        """Begin a transaction."""
        world.database.begin(process, self.isolation)
        return [None]


class Commit(NamedTuple):
    """COMMIT; without `is_durable` a crash may lose it."""

    is_durable: bool = True

    def step(self, world: World, process: str) -> list[Any]:
        """Commit the transaction."""
        world.database.commit(process, is_durable=self.is_durable)
        return [None]


class RollBack(NamedTuple):
    """ROLLBACK."""

    def step(self, world: World, process: str) -> list[Any]:
        """End the transaction."""
        world.database.roll_back(process)
        return [None]


class Claimed(NamedTuple):
    """Fence of a claim."""

    job: int
    token: int


class Started(NamedTuple):
    """A claim, for the invariants."""

    job: int
    delivery: int
    token: int


class Execute:
    """A statement."""

    def __init__(self, statement: Statement) -> None:
        self.statement = statement

    def __repr__(self) -> str:
        return self.statement.name.rpartition(".")[2] or f"a statement on {self.statement.table}"

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Execute it, or wait for a lock."""
        database = world.database
        answers = database.execute(process, self.statement)
        if isinstance(answers, Blocked):
            return answers
        world.started |= {answer for answer in answers if isinstance(answer, Started)}
        return [
            tuple(Claimed(each.job, each.token) if isinstance(each, Started) else each for each in answers)
        ]


class Select:
    """A query of several tables, in one snapshot; locks nothing."""

    def __init__(self, name: str, choose: Callable[[Rows], Any], tables: tuple[str, ...] = ()) -> None:
        self.name = name
        self.choose = choose
        self.tables = tables

    def __repr__(self) -> str:
        return self.name.rpartition(".")[2]

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Read, once the tables are locked."""
        database = world.database
        # Repeatable read takes its snapshot before the locks.
        rows = database.read(process)
        if self.tables:
            blocked = database.lock(process, self.tables)
            if blocked is not None:
                return blocked
            rows = database.read(process)
        return [self.choose(rows)]


class LockTables(NamedTuple):
    """LOCK TABLE, which takes no snapshot; without `waits`, NOWAIT."""

    tables: tuple[str, ...]
    mode: str = SHARED
    waits: bool = True

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Lock, or wait."""
        world.database.require_connection(process)
        return world.database.lock(process, self.tables, self.mode, waits=self.waits) or [None]


class Truncate(NamedTuple):
    """TRUNCATE; waits for the table's other users."""

    table: str

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Empty the table in this transaction."""
        world.database.require_connection(process)
        return world.database.truncate(process, self.table) or [None]


class Act:
    """Anything else that happens at once; without an answer, it waits."""

    def __init__(self, name: str, act: Callable[[World, str], list[Any]]) -> None:
        self.name = name
        self.step = act

    def __repr__(self) -> str:
        return self.name


class Pop(NamedTuple):
    """Wait for a delivery and take it; the worker has it nowhere else."""

    def step(self, world: World, process: str) -> list[Any]:
        """Remove the first."""
        if not world.queue:
            return []
        first, *rest = world.queue
        world.queue = tuple(rest)
        world.held = {**world.held, process: first}
        return [first]


class LowestListed(NamedTuple):
    """Read the lowest delivery number in the list; None if it is empty."""

    def step(self, world: World, process: str) -> list[Any]:
        """Read."""
        return [min((number for _, number in world.queue), default=None)]


def ids(wanted: Collection[int]) -> Callable[[int, Any, Collection[int]], bool]:
    """Make the condition `id = ANY (wanted)`."""
    found = frozenset(wanted)
    return lambda at, row, lapsed: at in found


def nothing(writer: Writer, row_id: int, row: Any) -> None:
    """Leave the row as it is."""

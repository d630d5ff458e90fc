"""PostgreSQL as the statements see it: snapshots, row locks, re-checks, lost connections, and lost last commits.

A row is any value with an equality, under a key of table and id. Simplification: a row that changes and changes back
counts as unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

Key = tuple[str, int]
Rows = Mapping[Key, Any]


class ConnectionLostError(Exception):
    """The session ended; its last statement may have been executed."""


class SerializationFailureError(Exception):
    """Repeatable read: another transaction changed the row after the snapshot."""


class DeadlockError(Exception):
    """Transactions wait for each other's rows."""


class UniqueViolationError(Exception):
    """The inserted row exists."""


class LockNotAvailableError(Exception):
    """NOWAIT: another transaction holds a conflicting lock."""


READ_COMMITTED, REPEATABLE_READ = "read committed", "repeatable read"
# Modes of table locks: of queries and writes, which agree with each other, and of LOCK and TRUNCATE.
SHARED, EXCLUSIVE = "shared", "exclusive"


class Xid(int):
    """Transaction id, given at a transaction's first write; states compare only the order of ids."""


class Seen(NamedTuple):
    """Transactions that a snapshot sees, as `pg_current_snapshot()`; its own is never `open`."""

    xmax: Xid
    open: tuple[Xid, ...] = ()

    @property
    def xmin(self) -> Xid:
        """Oldest transaction that was running."""
        return min((*self.open, self.xmax))

    def sees(self, xid: Xid) -> bool:
        """Return True if the transaction had ended."""
        return xid < self.xmax and xid not in self.open


class _MustWait(Exception):  # noqa: N818
    """A statement waits for another session: for its insert of the same row, or for its share of a key."""


class Blocked(NamedTuple):
    """Instead of an answer: the statement waits for a lock of `owner`."""

    owner: str


@dataclass(frozen=True)
class Statement:
    """A SQL statement: the rows that it finds and locks, and its effect on each.

    Attributes:
        name: Module and constant of the SQL, such as `drain.tables.claims.CLAIM`.
        table: Table of the rows.
        where: Condition on id, row and jobs whose lease has expired, checked again once the row is locked.
        effect: Called with each locked row, by id; an answer other than None is returned.
        reads: The rows are not locked, so that they may be outdated.
        shares_key: FOR KEY SHARE: the rows are locked against deletes alone.
        skips_locked: Locked rows are left out.
        limit: Most rows, the highest ids first.
        sequences: New values, set when the statement begins, even if the transaction rolls back.
        is_durable: Waits for the disk although the session does not.
        tables: Names of tables that it locks in a shared mode, after the snapshot of a repeatable-read transaction
            and before that of another.
    """

    name: str
    table: str
    where: Callable[[int, Any, frozenset[int]], bool]
    effect: Callable[[Writer, int, Any], Any]
    reads: bool = False
    shares_key: bool = False
    skips_locked: bool = False
    limit: int | None = None
    sequences: Mapping[str, int] = field(default_factory=dict)
    is_durable: bool = False
    tables: tuple[str, ...] = ()


class _Waiting(NamedTuple):
    """A statement in progress: its snapshot, the ids that it found, how many are done, and answers so far."""

    snapshot: Rows
    seen: Seen | None
    ids: tuple[int, ...]
    done: int
    answers: tuple[Any, ...]


@dataclass
class Transaction:
    """An open transaction of one session.

    Attributes:
        tables: Locked tables and the modes.
        truncated: Tables to be empty once it commits.
    """

    isolation: str
    is_implicit: bool = False
    snapshot: Rows | None = None
    writes: dict[Key, Any] = field(default_factory=dict)
    locks: frozenset[Key] = frozenset()
    shares: frozenset[Key] = frozenset()
    waiting: _Waiting | None = None
    is_durable: bool = False
    xid: Xid | None = None
    seen: Seen | None = None
    tables: frozenset[tuple[str, str]] = frozenset()
    truncated: frozenset[str] = frozenset()

    def key(self) -> object:
        """Hashable state."""
        waiting = self.waiting and (_frozen(self.waiting.snapshot), *self.waiting[1:])
        snapshot = None if self.snapshot is None else _frozen(self.snapshot)
        return (
            *(self.isolation, snapshot, _frozen(self.writes), self.locks, self.shares, self.tables),
            *(self.truncated, waiting, self.is_durable, self.xid, self.seen),
        )


class Writer:
    """What a statement's effect may do, in its transaction."""

    def __init__(self, database: Database, process: str, transaction: Transaction) -> None:
        self.database = database
        self.process = process
        self._transaction = transaction

    @property
    def snapshot(self) -> Rows:
        """Rows as the statement's snapshot sees them."""
        assert self._transaction.waiting is not None
        return self._transaction.waiting.snapshot

    @property
    def seen(self) -> Seen:
        """Transactions that the statement's snapshot sees: `pg_current_snapshot()`."""
        assert self._transaction.waiting is not None
        assert self._transaction.waiting.seen is not None
        return self._transaction.waiting.seen

    @property
    def xid(self) -> Xid:
        """The transaction's id: `pg_current_xact_id()`."""
        self.database.give_xid(self._transaction)
        assert self._transaction.xid is not None
        return self._transaction.xid

    def update(self, table: str, row_id: int, row: Any) -> None:
        """Write a locked row."""
        self._write(table, row_id, row)

    def delete(self, table: str, row_id: int) -> None:
        """Delete a locked row, after the sessions that share its key."""
        owner = self.database.sharer((table, row_id), self.process)
        if owner is not None:
            raise _MustWait(owner)
        self._write(table, row_id, None)

    def insert(self, table: str, row_id: int, row: Any) -> None:
        """Insert a row."""
        key = (table, row_id)
        if self.database.see(self.process).get(key) is not None or key in self.database.committed:
            raise UniqueViolationError(key)
        owner = self.database.owner(key, self.process)
        if owner is not None:
            raise _MustWait(owner)
        self._transaction.locks |= {key}
        self._write(table, row_id, row)

    def _write(self, table: str, row_id: int, row: Any) -> None:
        self.database.give_xid(self._transaction)
        self._transaction.writes[table, row_id] = row

    def insert_or_update(self, table: str, row_id: int, row: Any, may_update: Callable[[Any], bool]) -> bool:
        """INSERT … ON CONFLICT DO UPDATE … WHERE; return False if the newest row may not be replaced."""
        key = (table, row_id)
        owner = self.database.owner(key, self.process)
        if owner is not None:
            raise _MustWait(owner)
        newest = self.database.see(self.process).get(key)
        is_visible = newest == self.snapshot.get(key)
        if newest is not None and not is_visible and self._transaction.isolation == REPEATABLE_READ:
            raise SerializationFailureError(key)
        self._transaction.locks |= {key}
        if newest is not None and not may_update(newest):
            return False
        self._write(table, row_id, row)
        return True


@dataclass
class Database:
    """Committed rows, open transactions, and what a crash would leave.

    Attributes:
        committed: Rows of committed transactions; replaced, never changed.
        lapsed: Jobs whose lease has expired, as told by the clock.
        leader: Session that holds the advisory lock.
        disconnected: Sessions whose next statement finds the connection lost.
        flushed: What is on the disk; `unflushed` are the states after each commit since.
        lag: How many of the last commits and new values of sequences a replica may lack, flushed or not; 0: no replica.
        next_xid: Next transaction id; None if the scenario does not compare ids. A crash keeps it, since the log of
            a commit that is kept has its id.
    """

    committed: Rows
    sequences: Mapping[str, int]
    transactions: dict[str, Transaction] = field(default_factory=dict)
    lapsed: frozenset[int] = frozenset()
    leader: str | None = None
    disconnected: frozenset[str] = frozenset()
    flushed: tuple[Rows, Mapping[str, int]] | None = None
    unflushed: tuple[tuple[Rows, Mapping[str, int]], ...] = ()
    keeps_history: bool = False
    next_xid: Xid | None = None
    lag: int = 0

    def copy(self) -> Database:
        """Copy what changes in place."""
        transactions = {
            name: replace(each, writes=dict(each.writes)) for name, each in self.transactions.items()
        }
        return replace(self, transactions=transactions)

    def key(self) -> object:
        """Hashable state."""
        history = tuple(
            (_frozen(rows), _frozen(numbers))
            for rows, numbers in ([self.flushed] if self.flushed else []) + list(self.unflushed)
        )
        open_ = tuple(sorted((name, each.key()) for name, each in self.transactions.items()))
        key = (
            *(_frozen(self.committed), _frozen(self.sequences), open_, self.lapsed),
            *(self.leader, self.disconnected, history),
        )
        return key if self.next_xid is None else _ranked((*key, self.next_xid))

    def give_xid(self, transaction: Transaction) -> None:
        """Give a transaction that writes its id."""
        if self.next_xid is not None and transaction.xid is None:
            transaction.xid, self.next_xid = self.next_xid, Xid(self.next_xid + 1)

    def seen_by(self, process: str) -> Seen | None:
        """Return the transactions that a new snapshot of the session sees."""
        if self.next_xid is None:
            return None
        others = (each for name, each in self.transactions.items() if name != process)
        return Seen(self.next_xid, tuple(sorted(each.xid for each in others if each.xid is not None)))

    def owner(self, key: Key, process: str) -> str | None:
        """Return another session that holds the row's lock."""
        others = (name for name, each in self.transactions.items() if name != process and key in each.locks)
        return next(others, None)

    def sharer(self, key: Key, process: str) -> str | None:
        """Return another session that shares the row's key."""
        others = (name for name, each in self.transactions.items() if name != process and key in each.shares)
        return next(others, None)

    def _deleter(self, key: Key, process: str) -> str | None:
        """Return another session that holds the row's lock, unless it only updates the row."""
        owner = self.owner(key, process)
        return None if owner and self.transactions[owner].writes.get(key) is not None else owner

    def see(self, process: str) -> Rows:
        """Return the newest rows, with the session's own writes."""
        transaction = self.transactions.get(process)
        return _overlaid(self.committed, transaction.writes) if transaction else self.committed

    def read(self, process: str) -> Rows:
        """Return the rows that a query finds, by the transaction's isolation."""
        self.require_connection(process)
        transaction = self.transactions.get(process)
        if transaction is None or transaction.isolation == READ_COMMITTED:
            return self.see(process)
        if transaction.snapshot is None:
            transaction.snapshot, transaction.seen = self.committed, self.seen_by(process)
        return _overlaid(transaction.snapshot, transaction.writes)

    def begin(self, process: str, isolation: str) -> None:
        """Begin a transaction; the first statement takes its snapshot."""
        self.require_connection(process)
        self.transactions[process] = Transaction(isolation)

    def execute(self, process: str, statement: Statement) -> list[Any] | Blocked:
        """Execute a statement, or continue it after a wait; outside a transaction, commit it."""
        self.require_connection(process)
        transaction = self.transactions.get(process)
        if transaction is None:
            transaction = self.transactions[process] = Transaction(READ_COMMITTED, is_implicit=True)
        transaction.is_durable |= statement.is_durable
        if transaction.waiting is None:
            self.read(process)
            blocked = self.lock(process, statement.tables)
            if blocked is not None:
                return blocked
            self.sequences = {**self.sequences, **statement.sequences}
            if self.keeps_history and self.lag and statement.sequences:
                self._note((self.committed, self.sequences))
            transaction.waiting = self._begin_statement(process, transaction, statement)
        try:
            answers = self._go_on(process, transaction, statement)
        except Exception:
            if transaction.is_implicit:
                self.roll_back(process)
            raise
        if isinstance(answers, list) and transaction.is_implicit:
            self.commit(process, is_durable=transaction.is_durable)
        return answers

    def lock(
        self, process: str, tables: Iterable[str], mode: str = SHARED, *, waits: bool = True
    ) -> Blocked | None:
        """Lock tables until the transaction ends.

        Raises:
            LockNotAvailableError: Another transaction holds one, and this one does not wait.
        """
        transaction = self.transactions[process]
        for table in tables:
            for name, each in self.transactions.items():
                modes = {held for locked, held in each.tables if locked == table}
                if name != process and (EXCLUSIVE in modes or (modes and mode == EXCLUSIVE)):
                    if not waits:
                        raise LockNotAvailableError(table)
                    return Blocked(name)
            transaction.tables |= {(table, mode)}
        return None

    def truncate(self, process: str, table: str) -> Blocked | None:
        """Empty a table, once it is locked exclusively."""
        blocked = self.lock(process, [table], EXCLUSIVE)
        if blocked is None:
            transaction = self.transactions[process]
            transaction.truncated |= {table}
            transaction.writes |= {key: None for key in self.see(process) if key[0] == table}
        return blocked

    def _begin_statement(self, process: str, transaction: Transaction, statement: Statement) -> _Waiting:
        snapshot, numbers = self.committed, self.seen_by(process)
        if transaction.isolation == REPEATABLE_READ:
            if transaction.snapshot is None:
                transaction.snapshot, transaction.seen = snapshot, numbers
            snapshot, numbers = transaction.snapshot, transaction.seen
        seen = _overlaid(snapshot, transaction.writes)
        found = (
            at
            for (table, at), row in seen.items()
            if table == statement.table and statement.where(at, row, self.lapsed)
        )
        ids = sorted(found) if statement.limit is None else sorted(found, reverse=True)[: statement.limit]
        return _Waiting(seen, numbers, tuple(ids), 0, ())

    def _go_on(self, process: str, transaction: Transaction, statement: Statement) -> list[Any] | Blocked:
        waiting = transaction.waiting
        assert waiting is not None
        writer = Writer(self, process, transaction)
        answers = list(waiting.answers)
        for done in range(waiting.done, len(waiting.ids)):
            row_id = waiting.ids[done]
            key = (statement.table, row_id)
            row = waiting.snapshot[key]
            if not statement.reads:
                owner = (self._deleter if statement.shares_key else self.owner)(key, process)
                if owner is not None and statement.skips_locked:
                    continue
                if owner is not None:
                    transaction.waiting = waiting._replace(done=done, answers=tuple(answers))
                    return Blocked(owner)
                newest = self.see(process).get(key)
                if newest != row and transaction.isolation == REPEATABLE_READ:
                    raise SerializationFailureError(key)
                # Read committed checks the condition again on the newest version.
                if newest is None or not statement.where(row_id, newest, self.lapsed):
                    continue
                row = newest
                if statement.shares_key:
                    transaction.shares |= {key}
                else:
                    transaction.locks |= {key}
                self.give_xid(transaction)
            before = dict(transaction.writes)
            try:
                answer = statement.effect(writer, row_id, row)
            except _MustWait as wait:
                (owner,) = wait.args
                transaction.writes = before
                transaction.waiting = waiting._replace(done=done, answers=tuple(answers))
                return Blocked(owner)
            if answer is not None:
                answers.append(answer)
        transaction.waiting = None
        return answers

    def commit(self, process: str, *, is_durable: bool) -> None:
        """Commit; without waiting for the disk, a crash may lose it."""
        self.require_connection(process)
        transaction = self.transactions.pop(process)
        self.committed = _overlaid(self.committed, transaction.writes)
        if transaction.truncated:
            self._forget_truncated(transaction.truncated)
        if self.keeps_history:
            now = (self.committed, self.sequences)
            if not self.lag and (is_durable or transaction.is_durable):
                self.flushed, self.unflushed = now, ()
            elif transaction.writes:
                self._note(now)

    def _note(self, now: tuple[Rows, Mapping[str, int]]) -> None:
        """Add a state that a crash may leave; a replica has all but the latest."""
        self.unflushed += (now,)
        if self.lag and len(self.unflushed) > self.lag:
            self.flushed, *rest = self.unflushed
            self.unflushed = tuple(rest)

    def _forget_truncated(self, tables: frozenset[str]) -> None:
        """Remove the tables' rows from earlier snapshots too, since TRUNCATE replaces the file."""
        for each in self.transactions.values():
            if each.snapshot is not None:
                each.snapshot = {key: row for key, row in each.snapshot.items() if key[0] not in tables}

    def roll_back(self, process: str) -> None:
        """End the session's transaction, if any."""
        self.transactions.pop(process, None)

    def require_connection(self, process: str) -> None:
        """Raise a ConnectionLostError, once, in a session that has lost its connection."""
        if process in self.disconnected:
            self.disconnected -= {process}
            raise ConnectionLostError(process)

    def disconnect(self, process: str) -> None:
        """End a session: its transaction and its advisory lock."""
        self.roll_back(process)
        if self.leader == process:
            self.leader = None

    def crash(self, kept: int, processes: frozenset[str], *, is_last: bool = False) -> None:
        """Restart the server with all but the last commits that were not flushed; forget the rest if `is_last`."""
        assert self.flushed is not None
        self.transactions = {}
        self.leader = None
        self.disconnected = processes
        self.committed, self.sequences = self.flushed = (self.flushed, *self.unflushed)[kept]
        self.unflushed = ()
        if is_last:
            self.keeps_history, self.flushed = False, None


def of_table(rows: Rows, table: str) -> dict[int, Any]:
    """Return a table's rows by id."""
    return {at: row for (name, at), row in rows.items() if name == table}


def _overlaid(rows: Rows, writes: Mapping[Key, Any]) -> Rows:
    if not writes:
        return rows
    return {key: row for key, row in {**rows, **writes}.items() if row is not None}


def _frozen(rows: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(sorted(rows.items(), key=lambda item: item[0]))


def _ranked(key: Any) -> tuple[Any, ...]:
    """Flatten the key, with ranks instead of transaction ids: only their order matters."""
    flat: list[Any] = []
    _flatten(key, flat.append)
    places = {xid: place for place, xid in enumerate(sorted({each for each in flat if type(each) is Xid}))}
    return tuple([("xid", places[each]) if type(each) is Xid else each for each in flat])


def _flatten(value: tuple[Any, ...], add: Callable[[Any], None]) -> None:
    add(len(value))
    for each in value:
        if isinstance(each, tuple):
            _flatten(each, add)
        else:
            add(each)

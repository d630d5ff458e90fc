"""Shared commits: a worker runs jobs whose commits don't wait for the disk, and reports them after one flush.

The leader's redelivery is one step, since the module `delivery` has its programs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Claimed, Commit, Execute, Pop, RollBack, Select, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.delivery.scenarios import effect_with_finish, in_one_place, one_claim_per_token
from proof.delivery.statements import (
    ACCOUNTS,
    FINISHED,
    INFLIGHT,
    LAST_DELIVERY,
    PUSHED_UP_TO,
    REQUESTS,
    Job,
    Statements,
)
from proof.module import Module, Mutant
from proof.postgres import READ_COMMITTED, ConnectionLostError, Database, Rows, Statement, Writer

# In the notes: claims whose finish or refusal was reported. Each worker's journal is under the worker's name.
_REPORTED, _REFUSED = "reported", "refused"
_RUNNING, _COMMITTED, _RETURNED = "running", "committed", "returned"
# Jobs that an inbox may hold.
_BATCH = 2

Steps = Generator[Atom, Any, Any]
Ended = tuple[Claimed, str]


class _Journal(NamedTuple):
    """Note a claim's progress in memory that outlives the process; None forgets it."""

    claim: Claimed
    progress: str | None

    def step(self, world: World, process: str) -> list[Any]:
        """Write."""
        entries: Any = world.notes.get(process, ())
        kept = dict(entries) | {self.claim: self.progress}
        entries = tuple(sorted((claim, progress) for claim, progress in kept.items() if progress))
        world.notes = {**world.notes, process: entries}
        return [None]


class _Report(NamedTuple):
    """Act on the end of a claim: hooks, dependents, logs."""

    claim: Claimed
    under: str

    def step(self, world: World, process: str) -> list[Any]:
        """Note it, for the invariants."""
        noted: Any = world.notes[self.under]
        world.notes = {**world.notes, self.under: noted | {self.claim}}
        return [None]


class _TryToPop(NamedTuple):
    """Take a delivery, unless another worker was faster."""

    def step(self, world: World, process: str) -> list[Any]:
        """Remove the first."""
        return Pop().step(world, process) or [None]


def worker(name: str, statements: Statements, returning: frozenset[int]) -> Program:
    """Run jobs, and record the ended ones together at any moment.

    Args:
        returning: Jobs without a transaction of their own, finished by the batch's statement.
    """
    broken = statements.broken

    def run() -> Steps:
        yield from _recover(name, statements)
        ended: tuple[Ended, ...] = ()
        while True:
            work = yield Act("choose" if ended else "wait", partial(_choices, len(ended)))
            if work == "record":
                yield from _record(name, statements, ended)
                ended = ()
                continue
            popped = yield _TryToPop()
            if popped is None:
                continue
            job, delivery = popped
            # The delivery is dropped, and the leader will miss it.
            if broken != "claim a job that it holds" and job in {claim.job for claim, _ in ended}:
                continue
            for claim in (yield from _ask(statements.claim(job, delivery))):
                yield _Journal(claim, _RUNNING)
                if job in returning:
                    outcome = _RETURNED
                else:
                    outcome = yield from _run_in_transaction(name, statements, claim)
                if broken == "report before the flush" and outcome == _COMMITTED:
                    yield _Report(claim, _REPORTED)
                yield _Journal(claim, outcome)
                ended = (*ended, (claim, outcome))

    return run


def _choices(ended: int, world: World, process: str) -> list[Any]:
    return ["run"] * (bool(world.queue) and ended < _BATCH) + ["record"] * bool(ended)


def _ask(atom: Atom) -> Steps:
    """Ask again while the connection is lost, as `Database.ask`."""
    while True:
        try:
            return (yield atom)
        except ConnectionLostError:
            continue


def _run_in_transaction(name: str, statements: Statements, claim: Claimed) -> Steps:
    """Commit writes and finish, by `drain.tables.finishes.FINISH_OR_FAIL_WITHOUT_WAIT`; return the outcome."""
    try:
        yield Begin(READ_COMMITTED)
        yield statements.change(claim.job)
        if statements.broken == "finish with the batch instead":
            yield Commit(is_durable=False)
            return _RETURNED
        is_finished = yield statements.finish(claim, name)
        if not is_finished:
            yield RollBack()
            return _RUNNING
        yield Commit(is_durable=False)
    except ConnectionLostError:
        return _RUNNING
    return _COMMITTED


def _record(name: str, statements: Statements, ended: tuple[Ended, ...]) -> Steps:
    """Record a batch: finish, make durable, then the others one by one."""
    broken = statements.broken
    returned = tuple(claim for claim, outcome in ended if outcome == _RETURNED)
    committed = tuple(claim for claim, outcome in ended if outcome == _COMMITTED)
    finished: tuple[int, ...] = ()
    lasting: tuple[int, ...] = ()
    if returned:
        finished = yield from _ask(_finish_many(name, statements, returned))
    if committed:
        lasting = yield from _flushed("LASTING", name, statements, committed)
        if broken == "trust the answer to the commit":
            lasting = tuple(claim.job for claim in committed)
    for claim, outcome in ended:
        if claim.job in (*finished, *lasting):
            yield _Report(claim, _REPORTED)
        elif outcome == _RETURNED:
            yield from _finish_alone(name, statements, claim)
        elif broken != "leave an undone job to its lease":
            yield from _release(name, statements, claim)
        yield _Journal(claim, None)


def _flushed(what: str, name: str, statements: Statements, claims: tuple[Claimed, ...]) -> Steps:
    """Make earlier commits durable; return which jobs are finished under these claims.

    Models `drain.tables.finishes.LASTING` and `drain.tables.finishes.IS_FINISHED`.
    """
    by_id = statements.broken == "look up the job without its token"
    waits = statements.broken != "the flush does not wait"
    while True:
        try:
            yield Begin(READ_COMMITTED)
            found = yield Select(f"drain.tables.finishes.{what}", partial(_finished, claims, by_id=by_id))
            yield Commit(is_durable=waits)
            return found
        except ConnectionLostError:
            continue


def _finished(claims: tuple[Claimed, ...], rows: Rows, *, by_id: bool) -> tuple[int, ...]:
    tokens = {claim.job: rows.get((FINISHED, claim.job)) for claim in claims}
    return tuple(
        claim.job
        for claim in claims
        if tokens[claim.job] is not None and (by_id or tokens[claim.job] == claim.token)
    )


def _finish_many(name: str, statements: Statements, claims: tuple[Claimed, ...]) -> Execute:
    """Finish a batch, durably."""
    tokens = {claim.job: claim.token for claim in claims}

    def is_current(at: int, row: Job, lapsed: Any) -> bool:
        is_fenced = statements.broken == "finish the batch by ids" or row[1:3] == (tokens.get(at), name)
        return at in tokens and is_fenced

    def finish(writer: Writer, row_id: int, row: Job) -> int:
        if row[1:3] != (tokens[row_id], name):
            raise Violation("an outdated claim changes a job")
        writer.delete(INFLIGHT, row_id)
        writer.insert(FINISHED, row_id, row.token)
        return row_id

    return Execute(
        Statement("drain.tables.finishes.FINISH_MANY", INFLIGHT, is_current, finish, is_durable=True)
    )


def _finish_alone(name: str, statements: Statements, claim: Claimed) -> Steps:
    """Finish a job that the batch did not; it may be finished already, if an answer was lost."""
    if (yield from _ask(statements.finish(claim, name))):
        # `drain.tables.finishes.FINISH_ONCE` is durable.
        yield from _flushed("IS_FINISHED", name, statements, (claim,))
        yield _Report(claim, _REPORTED)
    elif statements.broken == "never look up a refused finish":
        yield _Report(claim, _REFUSED)
    else:
        yield from _look_up(name, statements, claim)


def _release(name: str, statements: Statements, claim: Claimed) -> Steps:
    """Let the job run again, by `drain.tables.outcomes.INTERRUPT` or, after an error, RETRY_LATER."""
    if (yield from _ask(statements.retry_later(claim, name))):
        return
    if statements.broken == "never look up a refused retry":
        yield _Report(claim, _REFUSED)
    else:
        yield from _look_up(name, statements, claim)


def _look_up(name: str, statements: Statements, claim: Claimed) -> Steps:
    is_finished = yield from _flushed("IS_FINISHED", name, statements, (claim,))
    yield _Report(claim, _REPORTED if is_finished else _REFUSED)


def _recover(name: str, statements: Statements) -> Steps:
    """Settle the journal of the process that was killed."""
    entries = yield Act("journal", lambda world, process: [world.notes.get(process, ())])
    for claim, progress in entries:
        is_finished = False
        if progress == _COMMITTED:
            is_finished = yield from _flushed("IS_FINISHED", name, statements, (claim,))
        by_token = progress == _RETURNED or statements.broken == "recover a commit by its token"
        if by_token and progress != _RUNNING:
            yield from _ask(statements.finish(claim, name))
        elif not is_finished:
            yield from _ask(statements.retry_later(claim, name))
        yield _Journal(claim, None)


def reports_last(world: World) -> None:
    """Require that a reported finish is still there, and that a refused claim did not finish."""
    rows = world.database.committed
    noted: Any = world.notes
    for claim in noted[_REPORTED]:
        if rows.get((FINISHED, claim.job)) != claim.token:
            raise Violation(f"a finish of job {claim.job} is reported that does not last")
    for claim in noted[_REFUSED]:
        if rows.get((FINISHED, claim.job)) == claim.token:
            raise Violation(f"the claim that finished job {claim.job} is reported as outdated")


def _happens(world: World) -> Iterator[tuple[str, bool, World]]:
    """Expire leases, a fault while the worker is busy, and redeliver."""
    held = set(world.held.values())
    for (table, job), row in world.database.committed.items():
        if table != INFLIGHT:
            continue
        if row.is_claimed and job not in world.database.lapsed:
            is_busy = row.worker in world.held
            if not is_busy or world.faults.get("expiry"):
                after = world.copy()
                if is_busy:
                    after.spend("expiry")
                after.database.lapsed |= {job}
                yield f"the lease of job {job} expires", is_busy, after
            continue
        delivery = (job, row.delivery)
        if row.is_claimed or row.waits or not (delivery in world.queue or delivery in held):
            yield from _redelivered(job, world)


def _redelivered(job: int, world: World) -> Iterator[tuple[str, bool, World]]:
    after = world.copy()
    number = after.database.sequences[LAST_DELIVERY] + 1

    def renumber(writer: Writer, row_id: int, row: Job) -> bool:
        writer.update(INFLIGHT, row_id, row._replace(delivery=number, is_claimed=False, waits=False))
        return True

    sequences = {LAST_DELIVERY: number}
    statement = Statement("", INFLIGHT, ids([job]), renumber, skips_locked=True, sequences=sequences)
    if after.database.execute("leader", statement):
        after.queue = (*after.queue, (job, number))
        yield f"the leader redelivers job {job}", False, after


def _all_done(world: World) -> bool:
    rows = world.database.committed
    return all((FINISHED, job) in rows for table, job in rows if table == REQUESTS)


def _start(jobs: int, returning: frozenset[int], faults: Mapping[str, int]) -> World:
    numbers = {LAST_DELIVERY: jobs, PUSHED_UP_TO: jobs}
    rows: dict[tuple[str, int], object] = {}
    for job in range(1, jobs + 1):
        rows |= {(REQUESTS, job): "staged", (INFLIGHT, job): Job(job)}
        if job not in returning:
            rows[ACCOUNTS, job] = 0
    database = Database(rows, numbers, keeps_history=True, flushed=(rows, numbers))
    queue = tuple((job, job) for job in range(1, jobs + 1))
    notes = {_REPORTED: frozenset[Claimed](), _REFUSED: frozenset[Claimed]()}
    return World(database, queue, dict(faults), notes=notes)


def grouping(
    broken: str, *, jobs: int = 1, workers: int = 1, returning: frozenset[int] = frozenset(), **faults: int
) -> Scenario:
    """Workers run delivered jobs and record them in groups."""
    statements = Statements(broken)
    names = [f"worker {number}" for number in range(1, workers + 1)]
    return Scenario(
        {name: worker(name, statements, returning) for name in names},
        partial(_start, jobs, returning, faults),
        (in_one_place, effect_with_finish, one_claim_per_token, reports_last),
        _all_done,
        _happens,
        lambda atom: str(atom) == "wait",
        lambda name: True,
    )


_RETURNS = frozenset({1})
_SCENARIOS: Mapping[str, Callable[[str], Scenario]] = {
    "PostgreSQL crashes": partial(grouping, crash=1, expiry=1),
    "PostgreSQL crashes twice": partial(grouping, crash=2),
    "two workers, PostgreSQL crashes": partial(grouping, workers=2, crash=1, expiry=1),
    "two jobs, PostgreSQL crashes": partial(grouping, jobs=2, crash=1),
    "a job in a transaction and one without": partial(grouping, jobs=2, returning=_RETURNS, crash=1),
    "a worker is killed and PostgreSQL crashes": partial(grouping, crash=1, kill=1, expiry=1),
    "two workers and two jobs": partial(grouping, jobs=2, workers=2, crash=1),
    "an answer is lost and PostgreSQL crashes": partial(grouping, crash=1, answer=1, expiry=1),
    "an answer is lost": partial(grouping, answer=2),
    "an answer is lost and leases expire": partial(grouping, workers=2, answer=1, expiry=1),
    "a job without a transaction": partial(grouping, workers=2, returning=_RETURNS, answer=1, expiry=1),
}
_LASTS, _EFFECT, _OUTDATED, _AS_OUTDATED = (
    "does not last",
    "has taken effect",
    "an outdated claim",
    "as outdated",
)
_CRASHES, _WORKERS = "PostgreSQL crashes", "two workers, PostgreSQL crashes"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("report before the flush", _CRASHES, _LASTS),
        ("the flush does not wait", _CRASHES, _LASTS),
        ("trust the answer to the commit", _CRASHES, _LASTS),
        ("look up the job without its token", _WORKERS, _LASTS),
        ("claim a job that it holds", _CRASHES, _LASTS),
        ("finish with the batch instead", _CRASHES, _EFFECT),
        ("recover a commit by its token", "a worker is killed and PostgreSQL crashes", _EFFECT),
        ("finish the batch by ids", "a job without a transaction", _OUTDATED),
        ("never look up a refused finish", "a job without a transaction", _AS_OUTDATED),
        ("never look up a refused retry", "an answer is lost", _AS_OUTDATED),
    )
)
_HARMLESS_ALONE = (Mutant("leave an undone job to its lease", _CRASHES, ""),)

GROUPS = Module("groups", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)

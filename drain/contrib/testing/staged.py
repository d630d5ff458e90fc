"""`Staged`: a test's jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

import psycopg

from drain.contrib.testing import clock, leader, rows
from drain.contrib.testing.adopted import Adopted, adopt, is_in_loop
from drain.contrib.testing.nested import LeaderConnection
from drain.contrib.testing.rows import Job, StagedJob, Wanted, listed
from drain.contrib.testing.worker import InlineWorker, Ran
from drain.database import schema
from drain.errors import HarnessError, SchemaError, UnknownJobError
from drain.formatting import visible
from drain.jobs import registry
from drain.jobs.cancelling import checked_ids
from drain.tables import changes, dead, time_travel
from drain.tables.changes import Change
from drain.tables.selections import Selection

# Attempts after which `run` assumes that jobs stage each other endlessly.
_MOST_ATTEMPTS = 1000
# Similarity of misspelled names.
_CLOSE = 0.8
_GOOD = ("finished", "deferred", "cancelled")


class Staged:
    """Jobs that a test has staged in its own transaction; nothing here commits.

    `run` works without Redis, leader and worker, with their statements and decisions.

    Args:
        connection: SQLAlchemy Session or Connection, psycopg connection (also their async ones), or
            django.db.connection within a TestCase. The driver must be psycopg 3.

    Attributes:
        advanced: Time advanced so far.
    """

    # One thing: a test's questions and orders; each is a few lines with much to explain.

    def __init__(self, connection: Any) -> None:
        self.advanced = timedelta()
        self._given = connection

    def all(self, job: Job | None = None) -> list[StagedJob]:
        """List the waiting jobs: staged, scheduled, blocked, parked or between attempts, in order of staging.

        Args:
            job: Name, function, or Django task; None for all.
        """
        wanted = Wanted(job)
        return [row for row in self._read() if wanted(row)]

    def assert_one(
        self,
        job: Job,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
        tag: str | None = None,
        key: str | None = None,
        unique_key: str | None = None,
        state: str | None = None,
    ) -> StagedJob:
        """Assert that exactly one such job waits, and return it; omitted arguments match anything.

        Args:
            job: Name or function.
            args, kwargs: Compared as JSON: a tuple is a list.
            queue, priority, tag, key, unique_key, state: As in `StagedJob`.

        Raises:
            AssertionError: No such job waits, or several; the text lists waiting jobs.
        """
        __tracebackhide__ = True
        columns = {"queue": queue, "priority": priority, "tag": tag, "key": key, "unique_key": unique_key}
        wanted = Wanted(job, args, kwargs, **columns, state=state)
        found = self._read()
        matching = [row for row in found if wanted(row)]
        if len(matching) != 1:
            number = "none" if not matching else str(len(matching))
            raise AssertionError(
                f"expected one {wanted}, found {number}; {listed(found)}{_hint(wanted, found)}"
            )
        return matching[0]

    def none(self, job: Job | None = None) -> None:
        """Assert that no job waits, or none of this name.

        Raises:
            AssertionError: Jobs wait; the text lists them.
            HarnessError: The name is unknown, but similar to another.
        """
        __tracebackhide__ = True
        wanted, found = Wanted(job), self._read()
        if any(map(wanted, found)):
            raise AssertionError(f"expected no {wanted}; {listed(found)}")
        if hint := _hint(wanted, found):
            raise HarnessError(f"no job has the name {wanted.name!r}{hint}")

    def run(self, job: Job | None = None, *, limit: int | None = None, check: bool = False) -> list[Ran]:
        """Run due jobs one by one, and those that they stage, until nothing is due.

        Arguments pass through JSON. A job that fails or is deferred waits until `advance`. Transactions of jobs and
        their steps are savepoints on the test's connection.

        Args:
            job: Name or function; None for all.
            limit: Most attempts; None fails beyond 1,000.
            check: Raise the first failed job's exception, once recorded.

        Returns:
            The attempts in order, and jobs that ended without one: expired, or superseded.

        Raises:
            HarnessError: The connection cannot be used; or an `async def` is due in a running event loop: then
                `await staged.arun()`.
        """
        wanted, results = self._for_run(job), _Results(limit, check=check)
        with self._at_work() as (connection, adopted):
            adopted.flush()
            worker = InlineWorker(connection, adopted)
            for job_id, delivery, name in _due(connection, wanted, results):
                if is_in_loop() and (found := registry.find(name)) is not None and found.runs_in_loop:
                    raise HarnessError(
                        f"{name} is `async def`, and an event loop runs here: `await staged.arun()`"
                    )
                results.add(worker.execute(job_id, delivery))
                leader.call_back(connection)
        return results.ran

    async def arun(
        self, job: Job | None = None, *, limit: int | None = None, check: bool = False
    ) -> list[Ran]:
        """Do as `run`; an `async def` is awaited in the running event loop."""
        wanted, results = self._for_run(job), _Results(limit, check=check)
        with self._at_work() as (connection, adopted):
            await adopted.aflush()
            worker = InlineWorker(connection, adopted)
            for job_id, delivery, _ in _due(connection, wanted, results):
                results.add(await worker.aexecute(job_id, delivery))
                leader.call_back(connection)
        return results.ran

    def advance(self, by: timedelta | None = None, **units: float) -> None:
        """Let time pass, as by `advance(days=7)`; `run` then finds the jobs that have come due.

        Scheduled jobs, retries, sleeps, timeouts, pauses and `expires_at` come nearer, and each tick of a schedule
        stages a job: of `drain.schedule`, and of `@job(cron=...)` in imported modules. The clocks of Python and the
        database stay: a time that your code computes is seen from now.

        Args:
            units: Instead of `by`: days, hours, minutes, seconds, as for a timedelta.

        Raises:
            HarnessError: The time is negative, or more than ten years; or a schedule ticks more than 10,000 times.
        """
        if (by is None) is not bool(units):
            raise HarnessError(
                "say by how much time advances: advance(days=7), or advance(timedelta(days=7))"
            )
        try:
            time = clock.checked(timedelta(**units) if by is None else by)
        except (TypeError, OverflowError) as error:
            raise HarnessError(f"time cannot advance by this: {error}") from None
        with self._at_work() as (connection, adopted):
            adopted.flush()
            clock.advance(connection, time, self.advanced)
        self.advanced += time

    def force_retry(self, job_id: int) -> None:
        """Make a job due: one that is scheduled, waits for its next attempt, or is dead.

        A blocked job still waits for its predecessors.

        Raises:
            HarnessError: The job is finished.
            UnknownJobError: No job has this id.
            SelectionError: This cannot be an id.
        """
        ids = checked_ids(job_id)
        with self._at_work() as (connection, _):
            _, now = time_travel.clock(connection)
            done = (
                time_travel.make_due(connection, ids[0])
                or changes.change_staged(connection, Selection(ids=ids), Change(run_at=now))
                or dead.revive(connection, dead.Selection(ids=ids))
            )
            if done or any(row.id == ids[0] for row in rows.read(connection)):
                return
            ended = rows.ended(connection, ids)
        if ended:
            raise HarnessError(f"job {ids[0]} is {ended[0][2]}, so there is nothing to retry")
        raise UnknownJobError(f"no job has the id {ids[0]}")

    def _for_run(self, job: Job | None) -> Wanted:
        wanted = Wanted(job)
        if wanted.name is not None and registry.find(wanted.name) is None:
            known = ", ".join(map(visible, registry.names())) or "nothing"
            raise HarnessError(f"no function is registered as {wanted.name!r}; registered here: {known}")
        return wanted

    def _read(self) -> list[StagedJob]:
        with self._at_work(writes=False) as (connection, adopted):
            adopted.flush()
            return rows.read(connection)

    @contextmanager
    def _at_work(self, *, writes: bool = True) -> Iterator[tuple[LeaderConnection, Adopted]]:
        adopted = adopt(self._given)
        connection = LeaderConnection(adopted.pgconn)
        try:
            with connection.transaction():
                schema.check_once(connection)
        except SchemaError as error:
            raise SchemaError(f"{error} (in the database of the test's connection)") from None
        try:
            yield connection, adopted
        except psycopg.errors.InsufficientPrivilege as error:
            raise HarnessError(
                f"the role of the test's connection may not do this: {error.diag.message_primary}; connect as the "
                "owner of job-drain's tables"
            ) from None
        finally:
            if writes:
                adopted.forget()


class _Results:
    def __init__(self, limit: int | None, *, check: bool) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise HarnessError(f"limit is a number of attempts, not {limit!r}")
        self.ran: list[Ran] = []
        self._check = check
        self._left = _MOST_ATTEMPTS if limit is None else limit
        self._is_given = limit is not None

    def has_room(self) -> bool:
        if self._left <= 0 and not self._is_given:
            raise HarnessError(
                f"{_MOST_ATTEMPTS:,} attempts were made and more jobs are due; do they stage each other? "
                "Give run() a limit"
            )
        return self._left > 0

    def add(self, ran: Ran | None) -> None:
        if ran is None:
            return
        self._left -= 1
        self.ran.append(ran)
        if self._check and ran.state not in _GOOD:
            raise ran.error or HarnessError(
                f"job {ran.id} ({ran.job_name}) is {ran.state}: {ran.explanation}"
            )


def _due(connection: LeaderConnection, wanted: Wanted, results: _Results) -> Iterator[tuple[int, int, str]]:
    """Yield id, delivery and name of due jobs in order of delivery, until nothing is due."""
    tried: set[tuple[int, int]] = set()
    while True:
        before = [row.id for row in rows.read(connection)]
        with connection.transaction(), clock.at_present(connection):
            leader.deliver(connection)
        results.ran += [
            Ran(job_id, name, state, explanation=explanation)
            for job_id, name, state, _, explanation in rows.ended(connection, before)
        ]
        due = [
            row
            for row in rows.delivered(connection)
            if wanted.name in (None, row[2]) and row[:2] not in tried
        ]
        if not due:
            return
        for row in due:
            if not results.has_room():
                return
            tried.add(row[:2])
            yield row


def _hint(wanted: Wanted, found: Sequence[StagedJob]) -> str:
    known = {*registry.names(), *(row.job_name for row in found)}
    if wanted.name is None or wanted.name in known:
        return ""
    similar = get_close_matches(wanted.name, known, n=1, cutoff=_CLOSE)
    return f"; did you mean {similar[0]!r}?" if similar else ""

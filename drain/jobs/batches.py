"""Batches: sets of jobs with callbacks that run once the jobs have ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Unpack

from drain.jobs import conversations
from drain.jobs.async_executors import AsyncConnectable
from drain.jobs.async_staging import astage, astage_many
from drain.jobs.conversations import Callback, Conversation
from drain.jobs.dependencies import Identified
from drain.jobs.executors import Connectable
from drain.jobs.rows import Arguments, Job
from drain.jobs.stage_options import ManyOptions, StageOptions
from drain.jobs.staging import stage, stage_many
from drain.jobs.values import as_description, as_undo


class Batch(Identified):
    """Batch that is being staged, usable in `after=` and `flow=`.

    Attributes:
        id: Id of the batch, and of the job that ends it.
    """

    def __init__(self, connection: Any, batch_id: int) -> None:
        self.id = batch_id
        self._connection = connection

    def stage(
        self,
        job: Job,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[StageOptions],
    ) -> int:
        """Stage a member; see `drain.stage`."""
        options["flow"] = self
        return stage(self._connection, job, args, kwargs, **options)

    def stage_many(
        self, job: Job, arguments: Iterable[Arguments], **options: Unpack[ManyOptions]
    ) -> list[int]:
        """Stage members; see `drain.stage_many`."""
        options["flow"] = self
        return stage_many(self._connection, job, arguments, **options)

    async def astage(
        self,
        job: Job,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[StageOptions],
    ) -> int:
        """Stage a member of an `abatch`; see `drain.astage`."""
        options["flow"] = self
        return await astage(self._connection, job, args, kwargs, **options)

    async def astage_many(
        self, job: Job, arguments: Iterable[Arguments], **options: Unpack[ManyOptions]
    ) -> list[int]:
        """Stage members of an `abatch`; see `drain.astage_many`."""
        options["flow"] = self
        return await astage_many(self._connection, job, arguments, **options)


@contextmanager
def batch(
    connection: Connectable,
    *,
    on_success: Callback | None = None,
    on_complete: Callback | None = None,
    on_dead: Callback | None = None,
    description: str | None = None,
    undo: bool | str = False,
) -> Iterator[Batch]:
    """Stage a batch of jobs and its callbacks in the open transaction.

    The block neither commits nor rolls back. Until the batch ends, its running members can add others with
    `drain.stage(..., flow=batch_id)`.

    Args:
        connection: As for `drain.stage`.
        on_success: Job to run once all members have finished: a job, `(job, args)` or `(job, args, kwargs)`.
        on_complete: Job to run once all members have finished or died.
        on_dead: Job to run once the first member has died.
        description: Text for operators.
        undo: Queue of the job that undoes the recorded steps of all members once they have ended and one is dead;
            True for "default".

    Yields:
        The batch. An empty one ends as soon as it is committed.

    Raises:
        StageError: An invalid callback, or a connection in autocommit mode.
    """
    given = {"success": on_success, "complete": on_complete, "dead": on_dead}
    flow = conversations.run(connection, _opening(given, description, undo=undo))
    yield Batch(connection, flow)


@asynccontextmanager
async def abatch(
    connection: AsyncConnectable,
    *,
    on_success: Callback | None = None,
    on_complete: Callback | None = None,
    on_dead: Callback | None = None,
    description: str | None = None,
    undo: bool | str = False,
) -> AsyncIterator[Batch]:
    """Stage a batch on an asynchronous connection; see `drain.batch`.

    Yields:
        The batch: await its `astage` and `astage_many`.
    """
    given = {"success": on_success, "complete": on_complete, "dead": on_dead}
    flow = await conversations.arun(connection, _opening(given, description, undo=undo))
    yield Batch(connection, flow)


def _opening(
    given: Mapping[str, Callback | None], description: str | None, *, undo: bool | str
) -> Conversation[int]:
    options = {"description": as_description(description), "undo": as_undo(undo=undo)}
    flow, _ = yield from conversations.opening(options, conversations.callbacks(given))
    return flow

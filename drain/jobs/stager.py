"""Typed staging of one function's jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, ParamSpec, cast

from drain.jobs.async_executors import AsyncConnectable
from drain.jobs.async_staging import astage, astage_many
from drain.jobs.executors import Connectable
from drain.jobs.options import RegisteredJob
from drain.jobs.rows import Arguments
from drain.jobs.stage_options import ManyOptions, StageOptions, refuse_for_many
from drain.jobs.staging import stage, stage_many

P = ParamSpec("P")


class Stager(Generic[P]):
    """Stages one function's jobs, with fixed options."""

    def __init__(self, job: RegisteredJob, given: StageOptions) -> None:
        self._job = job
        self._given = given

    def stage(self, connection: Connectable, /, *args: P.args, **kwargs: P.kwargs) -> int:
        """See `drain.stage`."""
        return stage(connection, self._job, args, kwargs, **self._given)

    def stage_many(self, connection: Connectable, arguments: Iterable[Arguments], /) -> list[int]:
        """See `drain.stage_many`."""
        refuse_for_many(self._given)
        return stage_many(connection, self._job, arguments, **cast(ManyOptions, self._given))

    async def astage(self, connection: AsyncConnectable, /, *args: P.args, **kwargs: P.kwargs) -> int:
        """See `drain.astage`."""
        return await astage(connection, self._job, args, kwargs, **self._given)

    async def astage_many(self, connection: AsyncConnectable, arguments: Iterable[Arguments], /) -> list[int]:
        """See `drain.astage_many`."""
        refuse_for_many(self._given)
        return await astage_many(connection, self._job, arguments, **cast(ManyOptions, self._given))

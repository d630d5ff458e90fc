"""Other jobs, as a running job sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drain.workers.context.loading import load

if TYPE_CHECKING:
    from drain.jobs.dependencies import FlowOfJob

# Loaded by name: its connections import the running job.
_PREDECESSORS = "drain.workers.context.predecessors"


class RelatedJobs:
    """Predecessors and flow of a running job, read on first use."""

    __slots__ = ()
    # Its module imports this one.
    _attempt: Any

    @property
    def results(self) -> dict[int | str, Any]:
        """Results of the jobs given as `after`: those that finished and were registered with `result="keep"`.

        By id, or by name for nodes of the job's own flow. The first use reads them in one round trip. In `async def`
        jobs, await `aresults()`.
        """
        found: dict[int | str, Any] = load(_PREDECESSORS).results(self._attempt)
        return found

    async def aresults(self) -> dict[int | str, Any]:
        """Return `results` without blocking the event loop."""
        found: dict[int | str, Any] = await load(_PREDECESSORS).aresults(self._attempt)
        return found

    @property
    def flow(self) -> FlowOfJob:
        """Batch or flow of this member or callback, with its `id`, and in a flow this job's `node`.

        A member adds jobs by `drain.stage(..., flow=current_job().flow)`. The first use is one round trip. In `async
        def` jobs, await `aflow()`.

        Raises:
            StageError: The job is neither a member nor a callback.
        """
        found: FlowOfJob = load(_PREDECESSORS).flow(self._attempt)
        return found

    async def aflow(self) -> FlowOfJob:
        """Return `flow` without blocking the event loop."""
        found: FlowOfJob = await load(_PREDECESSORS).aflow(self._attempt)
        return found

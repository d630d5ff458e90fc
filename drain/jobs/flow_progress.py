"""Progress of a batch or flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drain.jobs import async_executors, executors
from drain.jobs.async_executors import AsyncConnectable
from drain.jobs.dependencies import Identified, as_id
from drain.jobs.executors import Connectable
from drain.tables import flows


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """Counts of a batch's or flow's members.

    Attributes:
        total: Members so far; running members can add more.
        finished: Members that have finished or been superseded.
        dead: Members that are dead or were discarded.
        unfinished: All other members.
        state: `running`, `paused`, `finished`, or `cancelled`.
    """

    total: int
    finished: int
    dead: int
    unfinished: int
    state: str


def flow_progress(connection: Connectable, flow: int | Identified) -> FlowProgress | None:
    """Count the members of a batch or flow.

    Args:
        connection: As for `drain.stage`; in a transaction or not.
        flow: Batch, staged flow, or its id.

    Returns:
        The counts. None if the flow is unknown, or was staged by a role that this one is not a member of.

    Raises:
        StageError: Invalid id.
    """
    return _found(executors.execute(connection, flows.PROGRESS, {"flow": as_id("flow", flow)}))


async def aflow_progress(connection: AsyncConnectable, flow: int | Identified) -> FlowProgress | None:
    """Count the members of a batch or flow on an asynchronous connection; see `flow_progress`.

    Raises:
        StageError: Invalid id.
    """
    return _found(await async_executors.execute(connection, flows.PROGRESS, {"flow": as_id("flow", flow)}))


def _found(rows: list[tuple[Any, ...]]) -> FlowProgress | None:
    return FlowProgress(*rows[0]) if rows else None

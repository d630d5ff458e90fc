"""Staging of batches and flows without I/O: generators that yield statements and receive their rows."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

from drain.errors import IdempotencyConflictError, StageError
from drain.jobs import async_executors, executors, rows
from drain.jobs.async_executors import AsyncConnectable
from drain.jobs.dependencies import Edges, as_json
from drain.jobs.executors import Connectable
from drain.jobs.idempotency import as_object
from drain.jobs.rows import Job
from drain.jobs.stage_options import ManyOptions
from drain.tables import flows

_TAKEN = "23505"
T = TypeVar("T")
Conversation: TypeAlias = Generator[tuple[str, Mapping[str, Any]], list[tuple[Any, ...]], T]
Callback: TypeAlias = "Job | tuple[Job, Sequence[Any]] | tuple[Job, Sequence[Any], Mapping[str, Any]]"


class Node(NamedTuple):
    """Node of a flow, ready to be staged.

    Attributes:
        columns: Columns of its row.
        edges: `on_failure` by predecessor: its id, or the name of an earlier node.
    """

    name: str
    columns: Mapping[str, Any]
    edges: Edges


def run(connection: Connectable, conversation: Conversation[T]) -> T:
    """Run a conversation's statements in the open transaction, or raise StageError in autocommit mode."""
    executors.require_transaction(connection)
    try:
        call = next(conversation)
        while True:
            with _explained(*call):
                found = executors.execute(connection, *call)
            call = conversation.send(found)
    except StopIteration as end:
        result: T = end.value
        return result


async def arun(connection: AsyncConnectable, conversation: Conversation[T]) -> T:
    """See `run`."""
    await async_executors.require_transaction(connection)
    try:
        call = next(conversation)
        while True:
            with _explained(*call):
                found = await async_executors.execute(connection, *call)
            call = conversation.send(found)
    except StopIteration as end:
        result: T = end.value
        return result


@contextmanager
def _explained(statement: str, parameters: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if statement is not flows.OPEN or executors.sqlstate(error) != _TAKEN:
            raise
        key = json.loads(parameters["options"])["idempotency_key"]
        raise IdempotencyConflictError(
            f"idempotency key {key!r:.100} belongs to a job or another flow: roll back, and use another key"
        ) from error


def callbacks(
    given: Mapping[str, Callback | None], options: ManyOptions | None = None
) -> dict[str, dict[str, Any]]:
    """Validate callbacks; return columns by event."""
    return {event: _callback(event, each, options) for event, each in given.items() if each is not None}


def _callback(event: str, given: Callback, options: ManyOptions | None) -> dict[str, Any]:
    parts: tuple[Any, ...] = given if isinstance(given, tuple) else (given,)
    if not 1 <= len(parts) <= 3:
        raise StageError(f"on_{event} must be a job, (job, args) or (job, args, kwargs), not {given!r:.100}")
    job, args, kwargs = (*parts, (), {})[:3] if len(parts) == 1 else (*parts, {})[:3]
    return rows.staged_row(job, args, kwargs, **(options or {}))


def opening(
    options: Mapping[str, Any], callbacks: Mapping[str, Mapping[str, Any]]
) -> Conversation[tuple[int, bool]]:
    """Create a flow with its callbacks; return its id, and whether it is new."""
    given = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in options.items()
        if value is not None
    }
    ((flow, is_new),) = yield flows.OPEN, {"options": json.dumps(given)}
    if is_new and callbacks:
        jobs = [as_object({**columns, "event": event}) for event, columns in callbacks.items()]
        yield flows.CALLBACKS, {"flow": flow, "jobs": f"[{','.join(jobs)}]"}
    return flow, is_new


def staging(flow: int, nodes: Iterable[Node]) -> Conversation[dict[str, int]]:
    """Stage nodes, each after its predecessors; return their ids by name."""
    ids: dict[str, int] = {}
    block: dict[str, str] = {}
    positions: dict[str, int] = {}
    size = 0
    for node in nodes:
        # Rows of the same statement have no ids yet, only positions.
        edges: Edges = {
            (ids.get(name) or -positions[name]) if isinstance(name, str) else name: choice
            for name, choice in node.edges.items()
        }
        element = as_object({**node.columns, "node": node.name, "after": as_json(edges)})
        positions[node.name] = len(block) + 1
        block[node.name] = element
        size += len(element)
        if rows.is_full(len(block), size):
            ids |= yield from _sent(flow, block)
            block, positions, size = {}, {}, 0
    if block:
        ids |= yield from _sent(flow, block)
    return ids


def _sent(flow: int, block: Mapping[str, str]) -> Conversation[dict[str, int]]:
    found = yield flows.NODES, {"flow": flow, "jobs": f"[{','.join(block.values())}]"}
    return dict(zip(block, (job_id for (job_id,) in found), strict=True))

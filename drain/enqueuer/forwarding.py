"""Forwarded rows in RQ's format, as many as one Redis call carries.

A transaction pushes once. Redis accepts or refuses a call as a whole, so a rollback leaves nothing there, and the next
attempt makes no duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from drain import wire
from drain.database.postgres import Connection
from drain.errors import UndeliverableError
from drain.tables import staged
from drain.tables.staged import Forwardable
from drain.wire import Delivery

# Redis serves no other client during a call.
_MOST_BYTES = 8 * 1024 * 1024
# Rows per read: at first as many as fit at the schema's maximum size.
_FIRST_ROWS = 8
_MOST_ROWS = 64


class QueuesRefusedError(Exception):
    """Refusal: keys are not lists, or another database feeds the queues."""

    def __init__(self, queues: Sequence[str]) -> None:
        super().__init__(*queues)
        self.queues = queues


@dataclass(slots=True)
class ForwardBatch:
    """Forwarded jobs of one call.

    Attributes:
        deliveries: Encoded jobs, by id.
        unreadable: Reasons, by id.
        first_left_out: Id of the first row that did not fit.
    """

    deliveries: dict[int, Delivery] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)
    first_left_out: int | None = None


def read_batch(connection: Connection, namespace: str, ids: Sequence[int]) -> ForwardBatch:
    """Encode rows while they fit, at least one, in the transaction that read the ids."""
    first_left_out = ids[wire.JOBS_PER_CALL] if len(ids) > wire.JOBS_PER_CALL else None
    batch = ForwardBatch(first_left_out=first_left_out)
    size = 0
    for row in _read(connection, ids[: wire.JOBS_PER_CALL]):
        try:
            delivery = wire.forwarded(namespace, *row)
        except UndeliverableError as error:
            batch.unreadable[row.id] = str(error)
            continue
        size += len(delivery.data)
        if size > _MOST_BYTES and batch.deliveries:
            batch.first_left_out = row.id
            break
        batch.deliveries[row.id] = delivery
    return batch


def _read(connection: Connection, ids: Sequence[int]) -> Iterator[Forwardable]:
    first, rows = 0, _FIRST_ROWS
    while first < len(ids):
        yield from staged.read_forwardable(connection, ids[first : first + rows])
        first, rows = first + rows, min(2 * rows, _MOST_ROWS)

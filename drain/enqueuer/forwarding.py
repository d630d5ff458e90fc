"""Forwarded rows in RQ's format: as many as one call of Redis carries.

A transaction that forwards pushes once. Redis accepts a call or refuses it at its start, so a batch that is rolled
back has left nothing in Redis, and the next attempt makes no duplicates.
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

# Upper bound of a call: Redis serves no other client while it executes one.
_MOST_BYTES = 8 * 1024 * 1024
# Rows read at a time: at first as many as fit if each is as large as the schema allows, and later no more than this
# process has the memory for.
_FIRST_ROWS = 8
_MOST_ROWS = 64


class QueuesRefusedError(Exception):
    """Refusal of a push as a whole: the keys of these queues are no lists, or another database feeds these queues."""

    def __init__(self, queues: Sequence[str]) -> None:
        super().__init__(*queues)
        self.queues = queues


@dataclass(slots=True)
class ForwardBatch:
    """Forwarded jobs of one call.

    Attributes:
        deliveries: Encoded jobs, by the id of the row.
        unreadable: Rows that can never be delivered: the reason of each, by its id.
        first_left_out: Id of the first row that did not fit; None if all rows did.
    """

    deliveries: dict[int, Delivery] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)
    first_left_out: int | None = None


def read_batch(connection: Connection, namespace: str, ids: Sequence[int]) -> ForwardBatch:
    """Read and encode these rows in their order, up to the first that does not fit; the first row always fits.

    To be called in the transaction that has read the ids.
    """
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

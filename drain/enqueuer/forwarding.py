"""Forwarded rows, encoded for RQ: as many as one call of Redis carries.

A transaction that forwards pushes once. Redis takes a call or refuses it at its start, so a batch that is rolled
back has left nothing there, and trying it again makes no duplicates.
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

# Redis serves nobody else while it takes a call.
_MOST_BYTES = 8 * 1024 * 1024
# Rows that are read at a time: at first as many as fit if each is as large as the schema allows, and never more
# than this process has the memory for.
_FIRST_ROWS = 8
_MOST_ROWS = 64


class QueuesRefusedError(Exception):
    """Nothing was pushed, for the keys of these queues are no lists, or another database feeds these queues."""

    def __init__(self, queues: Sequence[str]) -> None:
        super().__init__(*queues)
        self.queues = queues


@dataclass(slots=True)
class ForwardBatch:
    """What goes in one call.

    Attributes:
        deliveries: By the id of the row.
        unreadable: Rows that can never be delivered, by id, and why.
        left: The first row that did not fit; None if all did.
    """

    deliveries: dict[int, Delivery] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)
    left: int | None = None


def load(connection: Connection, namespace: str, ids: Sequence[int]) -> ForwardBatch:
    """Read and encode these rows in their order, until one does not fit. The first one always does.

    To be called in the transaction that took them.
    """
    found = ForwardBatch(left=ids[wire.JOBS_PER_CALL] if len(ids) > wire.JOBS_PER_CALL else None)
    size = 0
    for row in _read(connection, ids[: wire.JOBS_PER_CALL]):
        try:
            delivery = wire.forwarded(namespace, *row)
        except UndeliverableError as error:
            found.unreadable[row.id] = str(error)
            continue
        size += len(delivery.data)
        if size > _MOST_BYTES and found.deliveries:
            found.left = row.id
            break
        found.deliveries[row.id] = delivery
    return found


def _read(connection: Connection, ids: Sequence[int]) -> Iterator[Forwardable]:
    first, rows = 0, _FIRST_ROWS
    while first < len(ids):
        yield from staged.read_forwardable(connection, ids[first : first + rows])
        first, rows = first + rows, min(2 * rows, _MOST_ROWS)

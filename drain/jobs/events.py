"""Events that end the waits of jobs, emitted in the application's transaction."""

from __future__ import annotations

import json
from typing import Any

from drain.errors import StageError
from drain.jobs import async_executors, executors, values
from drain.jobs.async_executors import AsyncConnectable
from drain.jobs.executors import Connectable

_EMIT = "SELECT drain_emit(CAST(%(event)s AS text), CAST(%(payload)s AS jsonb))"
# As in the schema's CHECK.
_MOST_BYTES, _DEPTH = 65_536, 500


def emit(connection: Connectable, event: str, payload: Any = None) -> int:
    """Emit an event in the open transaction, for jobs that wait for it now or later.

    They run again once it commits. The event reaches jobs staged by the transaction's role, or by roles that it is a
    member of. The owner of job-drain's tables and superusers reach all jobs.

    Args:
        connection: As for `drain.stage`.
        event: Up to 255 characters, without control characters, such as "approval:42".
        payload: Value that `wait_for` returns: numbers, strings, lists and objects, up to 64 KiB of JSON, and less than
            500 levels deep.

    Returns:
        Id of the event.

    Raises:
        StageError: Invalid event. Nothing was sent; the transaction is unchanged.
        SchemaError: The tables are missing. The transaction is aborted.
    """
    (event_id,) = executors.insert(connection, _EMIT, _parameters(event, payload))
    return event_id


async def aemit(connection: AsyncConnectable, event: str, payload: Any = None) -> int:
    """Emit an event on an asynchronous connection; see `emit`."""
    (event_id,) = await async_executors.insert(connection, _EMIT, _parameters(event, payload))
    return event_id


def _parameters(event: str, payload: Any) -> dict[str, str]:
    text = values.as_json("payload of the event", payload)
    if _bytes_of(text) > _MOST_BYTES:
        raise StageError(f"the payload of event {event!r:.100} is larger than {_MOST_BYTES} bytes of JSON")
    if values.is_deeper(text, _DEPTH - 1):
        raise StageError(f"the payload of event {event!r:.100} is nested {_DEPTH} levels deep or more")
    return {"event": values.as_event(event), "payload": text}


def _bytes_of(text: str) -> int:
    """Return the size of JSON with the spaces that PostgreSQL writes, which add less than a half."""
    if len(text) * 2 > _MOST_BYTES:
        text = json.dumps(json.loads(text), ensure_ascii=False)
    return len(text.encode())

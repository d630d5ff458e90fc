"""RQ jobs as the enqueuer pushes them: fields of the hash, for tracked jobs and for forwarded ones."""

from __future__ import annotations

import json
import pickle
from functools import lru_cache
from typing import NamedTuple

from drain.errors import UndeliverableError
from drain.formatting import visible
from drain.wire.calls import ENTRY_POINT, LARGEST_ID, NAMED, call_around_id, call_by_entry_point
from drain.wire.ids import forwarded_id, tracked_id

# Timeout of a forwarded job without one of its own: RQ's default, spelled out, since without a timeout in the hash an
# RQ worker fails at its first heartbeat.
_FORWARD_TIMEOUT_SECONDS = 180
# Margin of RQ's timeout over the job's own: RQ ends a job that even the worker's own timeout could not interrupt, once
# the lease is over too.
_OUTER_TIMEOUT_MARGIN_SECONDS = 60
_NO_TIMEOUT = -1
# Upper bound of a timeout: RQ sets an alarm, and the system counts its seconds in 32 bits.
_LONGEST_TIMEOUT_SECONDS = 2**31 - 1
# Time for which RQ keeps the hash of a job that a worker has run. 0 would cost nine more round trips.
_TRACKED_RESULT_TTL_SECONDS = 60
# Time for which RQ keeps a failed delivery: for people to read, and for redelivery to see that RQ has stopped the job,
# whose lease may last for hours. `dead_jobs` keeps the job itself until a person has looked.
FAILED_TTL_SECONDS = 86_400
# Pickled reference to the entry point, for the field in which RQ once kept results. A worker reads the field before it
# forks, so that every child finds the entry point imported: a third of what a job costs an `rq worker` without
# settings. RQ passes over a field that it cannot read, so tools that lack this package show our jobs all the same.
IMPORTS_ENTRY_POINT = f"c{NAMED}\n{ENTRY_POINT.removeprefix(f'{NAMED}.')}\n."


class Delivery(NamedTuple):
    """RQ job that is ready to be pushed; the attributes are in the order of the script's arguments.

    Attributes:
        rq_id: Its id in RQ.
        timeout: Seconds after which RQ itself gives the job up; -1 for never.
        description: Text that RQ's tools show for it.
        data: Its call, pickled.
        result_ttl: Seconds for which RQ keeps the hash of a job that it has run; "" for RQ's default.
        queue: Name of the queue.
    """

    rq_id: str
    timeout: int
    description: str
    data: bytes
    result_ttl: int | str
    queue: str


def tracked(
    namespace: str,
    job_id: int,
    queue: str,
    job_name: str,
    timeout_seconds: int | None,
    delivery: int,
    installation: str = "",
) -> Delivery:
    """Make the RQ job of a row in `inflight_jobs`: a call of our one entry point with the row's id.

    Args:
        namespace: First part of the RQ id.
        job_id: Id of the row.
        queue: Name of the queue.
        job_name: Name of the job, for RQ's tools.
        timeout_seconds: Timeout of the job itself; None for none.
        delivery: Delivery number, last part of the RQ id.
        installation: UUID of the row's database, so that no worker of another database claims the id there; "" for
            a call as older versions wrote it.
    """
    shown, before_id, after_id = _template(job_name, installation)
    if not installation or not 0 <= job_id <= LARGEST_ID:
        data = call_by_entry_point(job_id, installation)
    else:
        data = before_id + job_id.to_bytes(5, "little") + after_id
    outer = _NO_TIMEOUT
    if timeout_seconds is not None:
        outer = min(timeout_seconds + _OUTER_TIMEOUT_MARGIN_SECONDS, _LONGEST_TIMEOUT_SECONDS)
    rq_id = tracked_id(namespace, job_id, delivery)
    return Delivery(rq_id, outer, f"{shown} #{job_id}", data, _TRACKED_RESULT_TTL_SECONDS, queue)


@lru_cache(maxsize=10_000)
def _template(job_name: str, installation: str) -> tuple[str, bytes, bytes]:
    """Parts that all deliveries of a job share: the name for people, and the call before and after the id."""
    around_id = call_around_id(job_name, installation) if installation else (b"", b"")
    return _shown(job_name), *around_id


def forwarded(
    namespace: str,
    job_id: int,
    queue: str,
    job_name: str,
    job_args: str,
    job_kwargs: str,
    timeout_seconds: int | None,
) -> Delivery:
    """Make the RQ job that `Queue.enqueue(job_name, *args, **kwargs)` would have made.

    Args:
        namespace: First part of the RQ id.
        job_id: Id of the row.
        queue: Name of the queue.
        job_name: Dotted path of the function.
        job_args: JSON array.
        job_kwargs: JSON object.
        timeout_seconds: Timeout of the job; None for RQ's default.

    Raises:
        UndeliverableError: The arguments are JSON, but nothing that Python can read or pickle.
    """
    try:
        call = (job_name, None, tuple(json.loads(job_args)), json.loads(job_kwargs))
        data = pickle.dumps(call, protocol=pickle.HIGHEST_PROTOCOL)
    except (ValueError, RecursionError, pickle.PicklingError) as error:
        raise UndeliverableError(f"the arguments cannot be encoded for RQ: {error}") from error
    timeout = timeout_seconds or _FORWARD_TIMEOUT_SECONDS
    rq_id = forwarded_id(namespace, job_id)
    return Delivery(rq_id, timeout, f"{_shown(job_name)} #{job_id}", data, "", queue)


def _shown(job_name: str) -> str:
    """Name as RQ's tools may print it: characters that a terminal would obey are escaped."""
    # Nearly all names are plain ASCII, and this question takes a tenth of the time that the search for such
    # characters takes.
    return job_name if job_name.isascii() and job_name.isprintable() else visible(job_name)

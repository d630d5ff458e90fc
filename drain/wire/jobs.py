"""RQ jobs, tracked and forwarded, as pushed."""

from __future__ import annotations

import json
import pickle
from functools import lru_cache
from typing import NamedTuple

from drain.errors import UndeliverableError
from drain.formatting import visible
from drain.wire.calls import ENTRY_POINT, LARGEST_ID, NAMED, call_around_id, call_by_entry_point
from drain.wire.ids import forwarded_id, tracked_id

# RQ's default; without one, RQ workers fail at the first heartbeat.
_FORWARD_TIMEOUT_SECONDS = 180
# RQ ends jobs that the worker's own timeout could not interrupt, after their lease.
_OUTER_TIMEOUT_MARGIN_SECONDS = 60
_NO_TIMEOUT = -1
# RQ's alarm counts in 32 bits.
_LONGEST_TIMEOUT_SECONDS = 2**31 - 1
# For finished jobs. 0 would cost nine more round trips.
_TRACKED_RESULT_TTL_SECONDS = 60
# For failed deliveries: redelivery must see that RQ stopped a job, whose lease may last for hours.
FAILED_TTL_SECONDS = 86_400
# A pickle in RQ's old result field, read before forking: importing the entry point once saves a third of a job's cost.
# RQ ignores unreadable ones.
IMPORTS_ENTRY_POINT = f"c{NAMED}\n{ENTRY_POINT.removeprefix(f'{NAMED}.')}\n."


class Delivery(NamedTuple):
    """RQ job to push, in the order of the script's arguments.

    Attributes:
        timeout: Seconds until RQ ends the job; -1 for never.
        result_ttl: Seconds that RQ keeps the finished job; "" for RQ's default.
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
    """Return the RQ job of a row in `inflight_jobs`.

    `installation` keeps other databases from claiming the id.
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
    """Return the RQ job that `Queue.enqueue(job_name, *args, **kwargs)` makes.

    Raises:
        UndeliverableError: Python cannot read or pickle the arguments.
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
    # Ten times as fast as `visible`.
    return job_name if job_name.isascii() and job_name.isprintable() else visible(job_name)

"""RQ jobs, tracked and forwarded, as pushed."""

from __future__ import annotations

import json
import pickle
from functools import lru_cache
from typing import NamedTuple

from drain.errors import UndeliverableError
from drain.formatting import visible
from drain.wire.calls import (
    ENTRY_POINT,
    LARGEST_ID,
    NAMED,
    call_around_id,
    call_by_entry_point,
    id_in_call,
)
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


class Template(NamedTuple):
    """Fields that jobs have in common, in the order of the script's arguments.

    Attributes:
        timeout: Seconds until RQ ends the job; -1 for never.
        result_ttl: Seconds that RQ keeps the finished job; "" for RQ's default.
        shown_name: For the description.
        data: Up to the job id; all of it unless `data_end` is given.
        data_end: After the job id.
    """

    queue: str
    timeout: int
    result_ttl: int | str
    shown_name: str
    data: bytes
    data_end: bytes = b""


class Delivery(NamedTuple):
    """RQ job to push; the script fills its template by the job id within the RQ id."""

    rq_id: str
    job_id: int
    template: Template

    @property
    def queue(self) -> str:
        """Queue of the template."""
        return self.template.queue

    @property
    def description(self) -> str:
        """Text for RQ's tools."""
        return f"{self.template.shown_name} #{self.job_id}"

    @property
    def data(self) -> bytes:
        """Pickled call."""
        before, after = self.template.data, self.template.data_end
        return before + id_in_call(self.job_id) + after if after else before


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
    template = _template(queue, job_name, timeout_seconds, installation)
    if not installation or not 0 <= job_id <= LARGEST_ID:
        template = template._replace(data=call_by_entry_point(job_id, installation), data_end=b"")
    return Delivery(tracked_id(namespace, job_id, delivery), job_id, template)


@lru_cache(maxsize=10_000)
def _template(queue: str, job_name: str, timeout_seconds: int | None, installation: str) -> Template:
    outer = _NO_TIMEOUT
    if timeout_seconds is not None:
        outer = min(timeout_seconds + _OUTER_TIMEOUT_MARGIN_SECONDS, _LONGEST_TIMEOUT_SECONDS)
    around_id = call_around_id(job_name, installation) if installation else (b"", b"")
    return Template(queue, outer, _TRACKED_RESULT_TTL_SECONDS, _shown(job_name), *around_id)


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
    template = Template(queue, timeout, "", _shown(job_name), data)
    return Delivery(forwarded_id(namespace, job_id), job_id, template)


def _shown(job_name: str) -> str:
    # Ten times as fast as `visible`.
    return job_name if job_name.isascii() and job_name.isprintable() else visible(job_name)

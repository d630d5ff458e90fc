"""RQ ids of deliveries: `<namespace>-<job id>-<delivery number>`, and `<namespace>-<job id>-forward` in forward mode.

Each delivery of a job is an RQ job of its own, so what RQ still does to an earlier one (expiry, registries, clean-up)
cannot touch a later one.

The number of a thin delivery, which has no hash, begins with a zero: `<namespace>-<job id>-0<delivery number>`. As a
number it is the same, so every version of `drain work` claims it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Pattern of the RQ ids of thin deliveries, of any namespace.
_THIN = re.compile(r"[A-Za-z0-9_-]+-[0-9]{1,18}-0[0-9]{1,17}")


def tracked_id(namespace: str, job_id: int, delivery: int) -> str:
    """RQ id of one delivery of a tracked job."""
    return f"{namespace}-{job_id}-{delivery}"


def thin_id(namespace: str, job_id: int, delivery: int) -> str:
    """RQ id of a delivery of a tracked job that has no hash."""
    return f"{namespace}-{job_id}-0{delivery}"


def is_thin(rq_id: str) -> bool:
    """Return whether the RQ id is that of a delivery without a hash, of any namespace."""
    return _THIN.fullmatch(rq_id) is not None


def forwarded_id(namespace: str, job_id: int) -> str:
    """RQ id of a job in forward mode."""
    return f"{namespace}-{job_id}-forward"


def tracked_id_pattern(namespace: str) -> re.Pattern[bytes]:
    """Pattern of the RQ ids of tracked jobs of a namespace; its groups are the job id and the delivery number."""
    # No id of ours will ever have more digits, and PostgreSQL could not read them.
    return re.compile(rf"{re.escape(namespace)}-(\d{{1,18}})-(\d{{1,18}})".encode())


def delivery_number(namespace: str, rq_id: str) -> int | None:
    """Delivery number in the RQ id of a tracked job of the namespace; None for all other ids."""
    # No more digits than PostgreSQL could read: Python refuses to read some thousands of them.
    match = re.fullmatch(rf"{re.escape(namespace)}-[0-9]{{1,18}}-([0-9]{{1,18}})", rq_id)
    return int(match[1]) if match else None


def to_text(rq_id: bytes) -> str:
    """RQ id as text; bytes that are no UTF-8 are escaped, as in the names of files."""
    return rq_id.decode(errors="surrogateescape")


def to_bytes(rq_id: str) -> bytes:
    """RQ id as it is in Redis: the inverse of `to_text`."""
    return rq_id.encode(errors="surrogateescape")


class AwaitedId(NamedTuple):
    """Id that the blocking command has popped.

    Attributes:
        key: Key of its list.
        rq_id: As it was there.
        is_suspended: RQ's workers were suspended when it was popped.
    """

    key: str
    rq_id: bytes
    is_suspended: bool


class PoppedId(NamedTuple):
    """RQ id that has been popped from the list of its queue.

    Attributes:
        rq_id: RQ id as text, as `to_text` makes it.
        queue: Name of the queue.
        job_id: Id of a tracked job of ours; None for all other jobs.
        delivery: Delivery number of a tracked job of ours; 0 for all other jobs.
    """

    rq_id: str
    queue: str
    job_id: int | None
    delivery: int

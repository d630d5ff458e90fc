"""RQ ids of deliveries: `<namespace>-<job id>-<number>`, or `<namespace>-<job id>-forward`.

Thin deliveries, which have no hash, prefix the number with a zero, or with two to notify the leader of the job's
end. Every `drain work` accepts both.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_THIN = re.compile(r"[A-Za-z0-9_-]+-[0-9]{1,18}-0[0-9]{1,17}")


def tracked_id(namespace: str, job_id: int, delivery: int) -> str:
    """Return a tracked delivery's RQ id."""
    return f"{namespace}-{job_id}-{delivery}"


def thin_id(namespace: str, job_id: int, delivery: int, *, notifies_end: bool = False) -> str:
    """Return a thin delivery's RQ id."""
    return f"{namespace}-{job_id}-{'00' if notifies_end else '0'}{delivery}"


def is_thin(rq_id: str) -> bool:
    """Recognize thin ids of any namespace."""
    return _THIN.fullmatch(rq_id) is not None


def notifies_end(rq_id: str) -> bool:
    """Return whether a tracked id asks the worker to notify the leader of the job's end."""
    return rq_id.rpartition("-")[2].startswith("00")


def forwarded_id(namespace: str, job_id: int) -> str:
    """Return a forwarded job's RQ id."""
    return f"{namespace}-{job_id}-forward"


def tracked_id_pattern(namespace: str) -> re.Pattern[bytes]:
    """Return the pattern of tracked ids, with both numbers as groups."""
    # As many digits as a bigint holds.
    return re.compile(rf"{re.escape(namespace)}-(\d{{1,18}})-(\d{{1,18}})".encode())


def delivery_number(namespace: str, rq_id: str) -> int | None:
    """Return a tracked id's delivery number; None for other ids."""
    # Python refuses to parse thousands of digits.
    match = re.fullmatch(rf"{re.escape(namespace)}-[0-9]{{1,18}}-([0-9]{{1,18}})", rq_id)
    return int(match[1]) if match else None


def to_text(rq_id: bytes) -> str:
    """Decode an RQ id; invalid UTF-8 is escaped."""
    return rq_id.decode(errors="surrogateescape")


def to_bytes(rq_id: str) -> bytes:
    """Invert `to_text`."""
    return rq_id.encode(errors="surrogateescape")


class AwaitedId(NamedTuple):
    """Popped id, and whether RQ was suspended."""

    key: str
    rq_id: bytes
    is_suspended: bool


class PoppedId(NamedTuple):
    """Popped id; `job_id` is None and `delivery` 0 unless tracked."""

    rq_id: str
    queue: str
    job_id: int | None
    delivery: int

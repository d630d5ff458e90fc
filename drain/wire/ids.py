"""RQ ids of deliveries: `<namespace>-<job id>-<delivery number>`, or `<namespace>-<job id>-forward`.

A thin delivery, which has no hash, prefixes its number with a zero: the same number to every version of `drain work`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_THIN = re.compile(r"[A-Za-z0-9_-]+-[0-9]{1,18}-0[0-9]{1,17}")


def tracked_id(namespace: str, job_id: int, delivery: int) -> str:
    """Return the RQ id of a tracked job's delivery."""
    return f"{namespace}-{job_id}-{delivery}"


def thin_id(namespace: str, job_id: int, delivery: int) -> str:
    """Return the RQ id of a delivery without a hash."""
    return f"{namespace}-{job_id}-0{delivery}"


def is_thin(rq_id: str) -> bool:
    """Return whether an RQ id, of any namespace, is thin."""
    return _THIN.fullmatch(rq_id) is not None


def forwarded_id(namespace: str, job_id: int) -> str:
    """Return the RQ id of a forwarded job."""
    return f"{namespace}-{job_id}-forward"


def tracked_id_pattern(namespace: str) -> re.Pattern[bytes]:
    """Return the pattern of a namespace's tracked ids; groups: job id, delivery number."""
    # As many digits as PostgreSQL's bigint can hold.
    return re.compile(rf"{re.escape(namespace)}-(\d{{1,18}})-(\d{{1,18}})".encode())


def delivery_number(namespace: str, rq_id: str) -> int | None:
    """Return the delivery number in a tracked id of the namespace; None for other ids."""
    # Python refuses to parse thousands of digits.
    match = re.fullmatch(rf"{re.escape(namespace)}-[0-9]{{1,18}}-([0-9]{{1,18}})", rq_id)
    return int(match[1]) if match else None


def to_text(rq_id: bytes) -> str:
    """Decode an RQ id, escaping invalid UTF-8 as in file names."""
    return rq_id.decode(errors="surrogateescape")


def to_bytes(rq_id: str) -> bytes:
    """Encode an RQ id: the inverse of `to_text`."""
    return rq_id.encode(errors="surrogateescape")


class AwaitedId(NamedTuple):
    """Id that the blocking command popped.

    Attributes:
        key: Key of its list.
        is_suspended: RQ was suspended at that time.
    """

    key: str
    rq_id: bytes
    is_suspended: bool


class PoppedId(NamedTuple):
    """RQ id popped from its queue's list.

    Attributes:
        job_id: None unless it is a tracked job of ours.
        delivery: Delivery number; 0 likewise.
    """

    rq_id: str
    queue: str
    job_id: int | None
    delivery: int

"""Calls of tracked jobs: pickled by template, and read without unpickling.

A call names the entry point, or any attribute of `drain.rq`, and passes the row's id and its database's installation.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple
from uuid import UUID

import redis

# Every attribute of this module is the entry point, so RQ's tools can show job names.
NAMED = "drain.rq"
ENTRY_POINT = f"{NAMED}.execute"
# Its former path, possibly still in Redis.
_OLD_ENTRY_POINT = "workers.entry.execute"
# Pickle of (name, None, (job id in 5 bytes, installation in 16), {}). Beyond 64 bytes per value Redis stores a hash in
# 2.5 times the memory, and pushes are a third slower (measured).
_CALL = b"(\x8c%c%bN\x8a\x05"
_CALL_END = b"C\x10%b\x86}t."
_LONGEST_NAME = 64 - len(_CALL % (0, b"")) - 5 - len(_CALL_END % bytes(16)) - len(f"{NAMED}.")
# Five bytes.
LARGEST_ID = 2**39 - 1
# Names that may follow the module's; those that Python adds to a module begin with two underscores.
_SHOWABLE = re.compile(r"(?!__)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# By the entry point's own name, with a decimal id.
_CALL_BY_ENTRY = b"(\x8c%c%bNI%%d\nC\x10%%b\x86}t." % (len(ENTRY_POINT), ENTRY_POINT.encode())
# As in older versions: the id alone, in pickle protocol 0.
_CALL_BY_ID = b"(V%b\nN(I%%d\nt(dt." % ENTRY_POINT.encode()

# Matches all of these calls.
_NAME = rb"(?:%b|%b\.[^\n]{1,60})" % (re.escape(_OLD_ENTRY_POINT.encode()), re.escape(NAMED.encode()))
_TRACKED = re.compile(
    rb"\(\x8c.(?P<name>%b)N(?:I(?P<decimal>\d{1,18})\n|\x8a\x05(?P<binary>.{5}))C\x10(?P<installation>.{16})\x86}t\.|"
    rb"\(V%b\nN\(I(?P<alone>\d{1,18})\nt\(dt\." % (_NAME, _NAME),
    re.DOTALL,
)
_LONGEST_CALL = 200


class Kind(StrEnum):
    """Kind of job behind an id."""

    OURS = "ours"
    FOREIGN = "foreign"
    PLAIN = "plain"
    GONE = "gone"


class Classification(NamedTuple):
    """Kind of a job, and its call's content.

    Attributes:
        job_id: 0 unless tracked.
        installation: "" unless tracked, or written by an older version.
    """

    kind: Kind
    job_id: int = 0
    installation: str = ""


def call_around_id(job_name: str, installation: str) -> tuple[bytes, bytes]:
    """Return the bytes of a call before and after the id (five bytes, little-endian)."""
    name = _shown_name(job_name).encode()
    return _CALL % (len(name), name), _CALL_END % _uuid_bytes(installation)


def call_by_entry_point(job_id: int, installation: str) -> bytes:
    """Return a call by the entry point's own name, for any id; without installation if ""."""
    if not installation:
        return _CALL_BY_ID % job_id
    return _CALL_BY_ENTRY % (job_id, _uuid_bytes(installation))


@cache
def _uuid_bytes(installation: str) -> bytes:
    return UUID(installation).bytes


def _shown_name(job_name: str) -> str:
    """Return the function name shown by RQ's tools."""
    return f"{NAMED}.{_end_of(job_name)}" if _SHOWABLE.fullmatch(job_name) else ENTRY_POINT


def _end_of(job_name: str) -> str:
    """Shorten a name from its start, by whole parts if possible."""
    while len(job_name) > _LONGEST_NAME and "." in job_name:
        job_name = job_name.partition(".")[2]
    room = _LONGEST_NAME - len("…".encode())
    return job_name if len(job_name) <= _LONGEST_NAME else f"{job_name[:room]}…"


def read_call(data: bytes) -> tuple[str, None, tuple[int | bytes, ...], dict[str, object]] | None:
    """Read a tracked job's call, of any database, without unpickling; None for other data."""
    match = _TRACKED.fullmatch(_inflated(data))
    if match is None:
        return None
    installation = match["installation"]
    name = (match["name"] or ENTRY_POINT.encode()).decode(errors="replace")
    return name, None, (_job_id(match), installation) if installation else (_job_id(match),), {}


def classify(data: object, installation: str) -> Classification:
    """Classify a job by the `data` of its hash; not bytes if missing."""
    if not isinstance(data, bytes) or not data:
        return Classification(Kind.GONE)
    match = _TRACKED.fullmatch(_inflated(data))
    if match is None:
        return Classification(Kind.PLAIN)
    named = str(UUID(bytes=match["installation"])) if match["installation"] else ""
    return Classification(Kind.OURS if named == installation else Kind.FOREIGN, _job_id(match), named)


def classify_ids(client: redis.Redis, rq_ids: Sequence[bytes], installation: str) -> list[Classification]:
    """Classify the jobs of these ids, in one round trip.

    Raises:
        redis.RedisError: Redis does not reply.
    """
    with client.pipeline(transaction=False) as pipeline:
        for rq_id in rq_ids:
            pipeline.hget(b"rq:job:" + rq_id, "data")
        return [classify(data, installation) for data in pipeline.execute(raise_on_error=False)]


def _job_id(match: re.Match[bytes]) -> int:
    binary = match["binary"]
    return int.from_bytes(binary, "little") if binary else int(match["decimal"] or match["alone"])


def _inflated(data: bytes) -> bytes:
    """Undo RQ's compression, up to the longest call."""
    if data.startswith(b"x"):
        try:
            return zlib.decompressobj().decompress(data, _LONGEST_CALL)
        except zlib.error:
            return data
    return data

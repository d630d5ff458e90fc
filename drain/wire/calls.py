"""Calls of tracked jobs: pickled by template, read without unpickling."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple
from uuid import UUID

import redis

# Every attribute of it is the entry point.
NAMED = "drain.rq"
ENTRY_POINT = f"{NAMED}.execute"
# Possibly still in Redis.
_OLD_ENTRY_POINT = "workers.entry.execute"
# Pickle of (name, None, (id in 5 bytes, installation in 16), {}). Measured: with values over 64 bytes a hash takes 2.5
# times the memory, and pushes are a third slower.
_CALL = b"(\x8c%c%bN\x8a\x05"
_CALL_END = b"C\x10%b\x86}t."
_LONGEST_NAME = 64 - len(_CALL % (0, b"")) - 5 - len(_CALL_END % bytes(16)) - len(f"{NAMED}.")
LARGEST_ID = 2**39 - 1
# Python's own module attributes begin with two underscores.
_SHOWABLE = re.compile(r"(?!__)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# With a decimal id.
_CALL_BY_ENTRY = b"(\x8c%c%bNI%%d\nC\x10%%b\x86}t." % (len(ENTRY_POINT), ENTRY_POINT.encode())
# Older versions: the id alone.
_CALL_BY_ID = b"(V%b\nN(I%%d\nt(dt." % ENTRY_POINT.encode()

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
    """Kind of a job, and its call's arguments.

    Attributes:
        job_id: 0 unless tracked.
        installation: "" if unknown.
    """

    kind: Kind
    job_id: int = 0
    installation: str = ""


def call_around_id(job_name: str, installation: str) -> tuple[bytes, bytes]:
    """Return a call's bytes before and after the id."""
    name = _shown_name(job_name).encode()
    return _CALL % (len(name), name), _CALL_END % _uuid_bytes(installation)


def id_in_call(job_id: int) -> bytes:
    """Encode an id up to `LARGEST_ID`, as `push.lua` does."""
    return job_id.to_bytes(5, "little")


def call_by_entry_point(job_id: int, installation: str) -> bytes:
    """Return a call that names the entry point."""
    if not installation:
        return _CALL_BY_ID % job_id
    return _CALL_BY_ENTRY % (job_id, _uuid_bytes(installation))


@cache
def _uuid_bytes(installation: str) -> bytes:
    return UUID(installation).bytes


def _shown_name(job_name: str) -> str:
    return f"{NAMED}.{_end_of(job_name)}" if _SHOWABLE.fullmatch(job_name) else ENTRY_POINT


def _end_of(job_name: str) -> str:
    while len(job_name) > _LONGEST_NAME and "." in job_name:
        job_name = job_name.partition(".")[2]
    room = _LONGEST_NAME - len("…".encode())
    return job_name if len(job_name) <= _LONGEST_NAME else f"{job_name[:room]}…"


def read_call(data: bytes) -> tuple[str, None, tuple[int | bytes, ...], dict[str, object]] | None:
    """Read a tracked job's call without unpickling, if possible."""
    match = _TRACKED.fullmatch(_inflated(data))
    if match is None:
        return None
    installation = match["installation"]
    name = (match["name"] or ENTRY_POINT.encode()).decode(errors="replace")
    return name, None, (_job_id(match), installation) if installation else (_job_id(match),), {}


def classify(data: object, installation: str) -> Classification:
    """Classify a job by its `data`."""
    if not isinstance(data, bytes) or not data:
        return Classification(Kind.GONE)
    match = _TRACKED.fullmatch(_inflated(data))
    if match is None:
        return Classification(Kind.PLAIN)
    named = str(UUID(bytes=match["installation"])) if match["installation"] else ""
    return Classification(Kind.OURS if named == installation else Kind.FOREIGN, _job_id(match), named)


def classify_ids(client: redis.Redis, rq_ids: Sequence[bytes], installation: str) -> list[Classification]:
    """Classify jobs in one round trip; redis errors propagate."""
    with client.pipeline(transaction=False) as pipeline:
        for rq_id in rq_ids:
            pipeline.hget(b"rq:job:" + rq_id, "data")
        return [classify(data, installation) for data in pipeline.execute(raise_on_error=False)]


def _job_id(match: re.Match[bytes]) -> int:
    binary = match["binary"]
    return int.from_bytes(binary, "little") if binary else int(match["decimal"] or match["alone"])


def _inflated(data: bytes) -> bytes:
    if data.startswith(b"x"):
        try:
            return zlib.decompressobj().decompress(data, _LONGEST_CALL)
        except zlib.error:
            return data
    return data

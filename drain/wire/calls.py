"""Calls of tracked jobs: pickled by template, and read back from their bytes without unpickling.

The call names the entry point, or an attribute of `drain.rq` that is the entry point too, and passes the id of the row
and the installation of its database: no argument of a job and no function of it ever reaches Redis.

An id in a list may belong to a job of any kind, which the bytes of the job's call show:

    ours      a tracked delivery of this very database, under this namespace or an older one
    foreign   a tracked delivery of another database
    plain     a job of RQ's own, or of forward mode
    gone      there is no such hash, or the hash holds no call
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

# Module each attribute of which is the entry point, so that RQ's tools can show a job by a name of its own.
NAMED = "drain.rq"
# Dotted path of the entry point: the function that runs a tracked job.
ENTRY_POINT = f"{NAMED}.execute"
# Its path in older versions, whose deliveries may still be in Redis.
_OLD_ENTRY_POINT = "workers.entry.execute"
# Pickle of (name, None, (job id, installation), {}): a template, so that nothing has to be pickled for each job. The id
# is an integer of five bytes, the installation the 16 bytes of its UUID: with a value of more than 64 bytes Redis keeps
# a hash in a form that takes 2.5 times the memory; measured, a third fewer jobs pushed a second.
_CALL = b"(\x8c%c%bN\x8a\x05"
_CALL_END = b"C\x10%b\x86}t."
_LONGEST_NAME = 64 - len(_CALL % (0, b"")) - 5 - len(_CALL_END % bytes(16)) - len(f"{NAMED}.")
# Upper bound of the ids that five bytes hold.
LARGEST_ID = 2**39 - 1
# Names that can follow the module's. Every name that Python itself finds in a module begins with two underscores.
_SHOWABLE = re.compile(r"(?!__)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# Call of the entry point by its own name, with the id in decimal.
_CALL_BY_ENTRY = b"(\x8c%c%bNI%%d\nC\x10%%b\x86}t." % (len(ENTRY_POINT), ENTRY_POINT.encode())
# Call as older versions wrote it: the id alone, in the textual protocol.
_CALL_BY_ID = b"(V%b\nN(I%%d\nt(dt." % ENTRY_POINT.encode()

# Pattern of all these calls.
_NAME = rb"(?:%b|%b\.[^\n]{1,60})" % (re.escape(_OLD_ENTRY_POINT.encode()), re.escape(NAMED.encode()))
_TRACKED = re.compile(
    rb"\(\x8c.(?P<name>%b)N(?:I(?P<decimal>\d{1,18})\n|\x8a\x05(?P<binary>.{5}))C\x10(?P<installation>.{16})\x86}t\.|"
    rb"\(V%b\nN\(I(?P<alone>\d{1,18})\nt\(dt\." % (_NAME, _NAME),
    re.DOTALL,
)
# Upper bound of the bytes of such a call.
_LONGEST_CALL = 200


class Kind(StrEnum):
    """Kind of the job that an id belongs to."""

    OURS = "ours"
    FOREIGN = "foreign"
    PLAIN = "plain"
    GONE = "gone"


class Classification(NamedTuple):
    """Kind of a job, and what its call says.

    Attributes:
        kind: See `Kind`.
        job_id: Id of a tracked job, ours or another database's; 0 otherwise.
        installation: Installation that a tracked job names; "" if its version wrote none.
    """

    kind: Kind
    job_id: int = 0
    installation: str = ""


def call_around_id(job_name: str, installation: str) -> tuple[bytes, bytes]:
    """Call of a job by its own name: the bytes before and after the id, which is five bytes, the least first.

    Args:
        job_name: Dotted path of the job; a name that no attribute can have is called by the entry point's.
        installation: UUID of the row's database.
    """
    name = _shown_name(job_name).encode()
    return _CALL % (len(name), name), _CALL_END % _uuid_bytes(installation)


def call_by_entry_point(job_id: int, installation: str) -> bytes:
    """Call of the entry point by its own name, with an id of any size; with the id alone if `installation` is ""."""
    if not installation:
        return _CALL_BY_ID % job_id
    return _CALL_BY_ENTRY % (job_id, _uuid_bytes(installation))


@cache
def _uuid_bytes(installation: str) -> bytes:
    return UUID(installation).bytes


def _shown_name(job_name: str) -> str:
    """Name of the function, as RQ's tools print it."""
    return f"{NAMED}.{_end_of(job_name)}" if _SHOWABLE.fullmatch(job_name) else ENTRY_POINT


def _end_of(job_name: str) -> str:
    """As many last parts of a name as there is room for; the beginning of a part that is too long itself."""
    while len(job_name) > _LONGEST_NAME and "." in job_name:
        job_name = job_name.partition(".")[2]
    room = _LONGEST_NAME - len("…".encode())
    return job_name if len(job_name) <= _LONGEST_NAME else f"{job_name[:room]}…"


def read_call(data: bytes) -> tuple[str, None, tuple[int | bytes, ...], dict[str, object]] | None:
    """Read the name and the arguments of a tracked job's call, of any database, without unpickling; None otherwise."""
    match = _TRACKED.fullmatch(_inflated(data))
    if match is None:
        return None
    installation = match["installation"]
    name = (match["name"] or ENTRY_POINT.encode()).decode(errors="replace")
    return name, None, (_job_id(match), installation) if installation else (_job_id(match),), {}


def classify(data: object, installation: str) -> Classification:
    """Classify a job by its call.

    Args:
        data: Field `data` of the job's hash; None, or an error of Redis, where there is none.
        installation: UUID of our database.
    """
    if not isinstance(data, bytes) or not data:
        return Classification(Kind.GONE)
    match = _TRACKED.fullmatch(_inflated(data))
    if match is None:
        return Classification(Kind.PLAIN)
    named = str(UUID(bytes=match["installation"])) if match["installation"] else ""
    return Classification(Kind.OURS if named == installation else Kind.FOREIGN, _job_id(match), named)


def classify_ids(client: redis.Redis, rq_ids: Sequence[bytes], installation: str) -> list[Classification]:
    """Classify the jobs that these ids belong to, in one round trip.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    with client.pipeline(transaction=False) as pipeline:
        for rq_id in rq_ids:
            pipeline.hget(b"rq:job:" + rq_id, "data")
        return [classify(data, installation) for data in pipeline.execute(raise_on_error=False)]


def _job_id(match: re.Match[bytes]) -> int:
    binary = match["binary"]
    return int.from_bytes(binary, "little") if binary else int(match["decimal"] or match["alone"])


def _inflated(data: bytes) -> bytes:
    """Bytes before RQ compressed them, which it does when it saves a job; no more than a call of ours has."""
    if data.startswith(b"x"):
        try:
            return zlib.decompressobj().decompress(data, _LONGEST_CALL)
        except zlib.error:
            return data
    return data

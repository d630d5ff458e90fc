"""The measures of one worker slot, in memory that its processes share with the process that serves the port.

A few words for all jobs come first; then the names, the numbers and the exemplars of each pair of queue and job; then
the numbers of failures by pair and type of exception. A name is written before the count of names that makes it
visible.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from drain.jobs.objectives import RUN_BUCKETS, WAIT_BUCKETS

# Upper bounds of the pairs of queue and job, and of the pairs with a type of exception.
PAIRS = ERRORS = 256

# Places in the numbers of a pair. Each histogram has a number of each bucket, that of the highest one, and the sum.
RUN = 0
RUN_SUM = RUN + len(RUN_BUCKETS) + 1
WAIT = RUN_SUM + 1
WAIT_SUM = WAIT + len(WAIT_BUCKETS) + 1
# Jobs that have finished, jobs that had expired, and failures whose type has no number of its own.
FINISHED, EXPIRED, OTHER_FAILURES = range(WAIT_SUM + 1, WAIT_SUM + 4)
NUMBERS = OTHER_FAILURES + 1

# Native words: each is copied as a whole, so that a reader never sees a part of one.
_COUNT = struct.Struct("q")
_NUMBER = struct.Struct("d")
_ROW = struct.Struct(f"{NUMBERS}d")
# Time, seconds of the job, and the 16 bytes of the trace id.
_EXEMPLAR = struct.Struct("dd16s")
_EXEMPLARS = len(RUN_BUCKETS) + 1
# Length and text of a name. PostgreSQL holds 100 characters of ASCII for a queue and 255 characters for a job.
_PAIR_NAME = struct.Struct("q1128s")
# Number of the pair, number of failures, length and text of the type.
_ERROR = struct.Struct("qdq256s")
_LONGEST_ERROR = 256

# Process id, numbers of pairs and of errors; then the three words of `Totals`.
_PID_AT, _PAIRS_AT, _ERRORS_AT, _TOTALS_AT = range(0, 32, 8)
_TOTALS = struct.Struct("ddd")
_NAMES_AT = _TOTALS_AT + _TOTALS.size
_ROWS_AT = _NAMES_AT + PAIRS * _PAIR_NAME.size
_EXEMPLARS_AT = _ROWS_AT + PAIRS * _ROW.size
_FAILURES_AT = _EXEMPLARS_AT + PAIRS * _EXEMPLARS * _EXEMPLAR.size
_SIZE = _FAILURES_AT + ERRORS * _ERROR.size


class Totals(NamedTuple):
    """Numbers of all jobs of a worker slot.

    Attributes:
        busy_seconds: Seconds of the jobs that have ended.
        lost_leases: Attempts whose lease was lost.
        stale_outcomes: Outcomes that were refused.
    """

    busy_seconds: float
    lost_leases: float
    stale_outcomes: float


class Exemplar(NamedTuple):
    """One job of a bucket, with its trace.

    Attributes:
        at: Time at which it was counted, in seconds since 1970.
        seconds: Seconds that it ran.
        trace: Id of its trace.
    """

    at: float
    seconds: float
    trace: bytes


class Failures(NamedTuple):
    """Failures of one type of exception.

    Attributes:
        pair: Number of the pair of queue and job.
        number: Number of the failures.
        error: Name of the type.
    """

    pair: int
    number: float
    error: str


class Measures:
    """The measures of the processes of one worker slot, one process after the other."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)

    @property
    def pid(self) -> int:
        """Id of the present process, or of the last one; 0 before the first."""
        return self._count(_PID_AT)

    @pid.setter
    def pid(self, pid: int) -> None:
        self._write(_PID_AT, _COUNT.pack(pid))

    @property
    def totals(self) -> Totals:
        """Numbers of all jobs."""
        return Totals._make(_TOTALS.unpack_from(self._memory, _TOTALS_AT))

    @totals.setter
    def totals(self, totals: Sequence[float]) -> None:
        self._write(_TOTALS_AT, _TOTALS.pack(*totals))

    def pairs(self) -> list[tuple[str, str]]:
        """List the pairs of queue and job, in the order of their numbers."""
        found = []
        for pair in range(self._count(_PAIRS_AT)):
            size, text = _PAIR_NAME.unpack_from(self._memory, _NAMES_AT + pair * _PAIR_NAME.size)
            queue, _, job = text[:size].decode(errors="replace").partition("\0")
            found.append((queue, job))
        return found

    def add_pair(self, queue: str, job: str) -> int:
        """Add a pair, whose numbers are 0; return its number."""
        pair = self._count(_PAIRS_AT)
        text = f"{queue}\0{job}".encode(errors="replace")
        size = min(len(text), _PAIR_NAME.size - _COUNT.size)
        self._write(_NAMES_AT + pair * _PAIR_NAME.size, _PAIR_NAME.pack(size, text))
        self._write(_PAIRS_AT, _COUNT.pack(pair + 1))
        return pair

    def row(self, pair: int) -> list[float]:
        """Read the numbers of a pair."""
        return list(_ROW.unpack_from(self._memory, _ROWS_AT + pair * _ROW.size))

    def write_row(self, pair: int, row: Sequence[float]) -> None:
        """Write the numbers of a pair, none of which may be lower than before."""
        self._write(_ROWS_AT + pair * _ROW.size, _ROW.pack(*row))

    def exemplars(self, pair: int) -> list[Exemplar | None]:
        """Read the latest exemplar of each bucket of a pair; None for a bucket that has none."""
        return [self._exemplar(_exemplar_at(pair, bucket)) for bucket in range(_EXEMPLARS)]

    def write_exemplar(self, pair: int, bucket: int, exemplar: Exemplar) -> None:
        """Write the latest exemplar of a bucket."""
        at = _exemplar_at(pair, bucket)
        # While it is being written, there is none.
        self._write(at, _NUMBER.pack(0.0))
        self._write(at, _EXEMPLAR.pack(0.0, exemplar.seconds, exemplar.trace))
        self._write(at, _NUMBER.pack(exemplar.at))

    def failures(self) -> Iterator[Failures]:
        """Read the numbers of failures by type, in the order in which they were added."""
        for number in range(self._count(_ERRORS_AT)):
            pair, failures, size, text = _ERROR.unpack_from(self._memory, _error_at(number))
            yield Failures(pair, failures, text[:size].decode(errors="ignore"))

    def add_error(self, pair: int, error: str) -> int:
        """Add a type of exception for a pair; return its number."""
        number = self._count(_ERRORS_AT)
        text = error_text(error).encode()
        self._write(_error_at(number), _ERROR.pack(pair, 0.0, len(text), text))
        self._write(_ERRORS_AT, _COUNT.pack(number + 1))
        return number

    def count_error(self, number: int, failures: float) -> None:
        """Write the number of failures of a type."""
        self._write(_error_at(number) + _COUNT.size, _NUMBER.pack(failures))

    def _write(self, at: int, packed: bytes) -> None:
        # `pack_into` writes zeros first, which a reader could see, and which would stay if the process died then.
        self._memory[at : at + len(packed)] = packed

    def _count(self, at: int) -> int:
        return int(_COUNT.unpack_from(self._memory, at)[0])

    def _exemplar(self, at: int) -> Exemplar | None:
        read = Exemplar._make(_EXEMPLAR.unpack_from(self._memory, at))
        # Another one if the time has changed meanwhile.
        return read if read.at and _NUMBER.unpack_from(self._memory, at)[0] == read.at else None


def error_text(error: str) -> str:
    """Cut the name of a type of exception to what the memory holds."""
    return error.encode(errors="replace")[:_LONGEST_ERROR].decode(errors="ignore")


def _exemplar_at(pair: int, bucket: int) -> int:
    return _EXEMPLARS_AT + (pair * _EXEMPLARS + bucket) * _EXEMPLAR.size


def _error_at(number: int) -> int:
    return _FAILURES_AT + number * _ERROR.size

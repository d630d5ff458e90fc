"""Measures of one worker slot, in memory shared with the port.

A name is written before the count that makes it visible.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from drain.jobs.objectives import RUN_BUCKETS, WAIT_BUCKETS

# Of queue and job, and of those with an exception type.
PAIRS = ERRORS = 256

# Per pair. A histogram has its buckets, the highest, and the sum.
RUN = 0
RUN_SUM = RUN + len(RUN_BUCKETS) + 1
WAIT = RUN_SUM + 1
WAIT_SUM = WAIT + len(WAIT_BUCKETS) + 1
# Finished, expired, and failures without their own type.
FINISHED, EXPIRED, OTHER_FAILURES = range(WAIT_SUM + 1, WAIT_SUM + 4)
NUMBERS = OTHER_FAILURES + 1

# Native words, copied whole, so that readers never see parts.
_COUNT = struct.Struct("q")
_NUMBER = struct.Struct("d")
_ROW = struct.Struct(f"{NUMBERS}d")
# Time, run seconds, trace id.
_EXEMPLAR = struct.Struct("dd16s")
_EXEMPLARS = len(RUN_BUCKETS) + 1
# Length and text; PostgreSQL bounds queues to 100 ASCII characters and job names to 255.
_PAIR_NAME = struct.Struct("q1128s")
# Pair, failures, length and text of the type.
_ERROR = struct.Struct("qdq256s")
_LONGEST_ERROR = 256

# Process id, counts of pairs and errors; then `Totals`.
_PID_AT, _PAIRS_AT, _ERRORS_AT, _TOTALS_AT = range(0, 32, 8)
_TOTALS = struct.Struct("ddd")
_NAMES_AT = _TOTALS_AT + _TOTALS.size
_ROWS_AT = _NAMES_AT + PAIRS * _PAIR_NAME.size
_EXEMPLARS_AT = _ROWS_AT + PAIRS * _ROW.size
_FAILURES_AT = _EXEMPLARS_AT + PAIRS * _EXEMPLARS * _EXEMPLAR.size
_SIZE = _FAILURES_AT + ERRORS * _ERROR.size


class Totals(NamedTuple):
    """Busy seconds of ended jobs, lost leases, and refused outcomes."""

    busy_seconds: float
    lost_leases: float
    stale_outcomes: float


class Exemplar(NamedTuple):
    """Job with its trace; `at` is in seconds since 1970."""

    at: float
    seconds: float
    trace: bytes


class Failures(NamedTuple):
    """Failures of one exception type in a pair."""

    pair: int
    number: float
    error: str


class Measures:
    """Measures of a slot's successive processes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)

    @property
    def pid(self) -> int:
        """Id of the latest process; 0 before the first."""
        return self._count(_PID_AT)

    @pid.setter
    def pid(self, pid: int) -> None:
        self._write(_PID_AT, _COUNT.pack(pid))

    @property
    def totals(self) -> Totals:
        """Totals of all jobs."""
        return Totals._make(_TOTALS.unpack_from(self._memory, _TOTALS_AT))

    @totals.setter
    def totals(self, totals: Sequence[float]) -> None:
        self._write(_TOTALS_AT, _TOTALS.pack(*totals))

    def pairs(self) -> list[tuple[str, str]]:
        """List the pairs by number."""
        found = []
        for pair in range(self._count(_PAIRS_AT)):
            size, text = _PAIR_NAME.unpack_from(self._memory, _NAMES_AT + pair * _PAIR_NAME.size)
            queue, _, job = text[:size].decode(errors="replace").partition("\0")
            found.append((queue, job))
        return found

    def add_pair(self, queue: str, job: str) -> int:
        """Add a pair and return its number."""
        pair = self._count(_PAIRS_AT)
        text = f"{queue}\0{job}".encode(errors="replace")
        size = min(len(text), _PAIR_NAME.size - _COUNT.size)
        self._write(_NAMES_AT + pair * _PAIR_NAME.size, _PAIR_NAME.pack(size, text))
        self._write(_PAIRS_AT, _COUNT.pack(pair + 1))
        return pair

    def row(self, pair: int) -> list[float]:
        """Read a pair's numbers."""
        return list(_ROW.unpack_from(self._memory, _ROWS_AT + pair * _ROW.size))

    def write_row(self, pair: int, row: Sequence[float]) -> None:
        """Write a pair's numbers, none lower than before."""
        self._write(_ROWS_AT + pair * _ROW.size, _ROW.pack(*row))

    def exemplars(self, pair: int) -> list[Exemplar | None]:
        """Read each bucket's exemplar, if any."""
        return [self._exemplar(_exemplar_at(pair, bucket)) for bucket in range(_EXEMPLARS)]

    def write_exemplar(self, pair: int, bucket: int, exemplar: Exemplar) -> None:
        """Write a bucket's exemplar."""
        at = _exemplar_at(pair, bucket)
        # None while being written.
        self._write(at, _NUMBER.pack(0.0))
        self._write(at, _EXEMPLAR.pack(0.0, exemplar.seconds, exemplar.trace))
        self._write(at, _NUMBER.pack(exemplar.at))

    def failures(self) -> Iterator[Failures]:
        """Read failures in the order added."""
        for number in range(self._count(_ERRORS_AT)):
            pair, failures, size, text = _ERROR.unpack_from(self._memory, _error_at(number))
            yield Failures(pair, failures, text[:size].decode(errors="ignore"))

    def add_error(self, pair: int, error: str) -> int:
        """Add an exception type and return its number."""
        number = self._count(_ERRORS_AT)
        text = error_text(error).encode()
        self._write(_error_at(number), _ERROR.pack(pair, 0.0, len(text), text))
        self._write(_ERRORS_AT, _COUNT.pack(number + 1))
        return number

    def count_error(self, number: int, failures: float) -> None:
        """Write a type's failures."""
        self._write(_error_at(number) + _COUNT.size, _NUMBER.pack(failures))

    def _write(self, at: int, packed: bytes) -> None:
        # `pack_into` writes zeros first, which could be read, or stay after a death.
        self._memory[at : at + len(packed)] = packed

    def _count(self, at: int) -> int:
        return int(_COUNT.unpack_from(self._memory, at)[0])

    def _exemplar(self, at: int) -> Exemplar | None:
        read = Exemplar._make(_EXEMPLAR.unpack_from(self._memory, at))
        # Another if the time has changed.
        return read if read.at and _NUMBER.unpack_from(self._memory, at)[0] == read.at else None


def error_text(error: str) -> str:
    """Cut a type to the available size."""
    return error.encode(errors="replace")[:_LONGEST_ERROR].decode(errors="ignore")


def _exemplar_at(pair: int, bucket: int) -> int:
    return _EXEMPLARS_AT + (pair * _EXEMPLARS + bucket) * _EXEMPLAR.size


def _error_at(number: int) -> int:
    return _FAILURES_AT + number * _ERROR.size

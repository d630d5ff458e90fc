"""Journal of a process' jobs, in memory shared with the supervisor, which outlives it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from time import monotonic
from typing import NamedTuple

from drain.tables.fences import Fence, Fenced

# Claimed at a time.
SLOTS = 4096

_SLOT = struct.Struct("<qqqqqd")
_STATE = struct.Struct("<q")
_TIME = struct.Struct("<d")
_STATE_AND_TIME = struct.Struct("<qd")
_STATE_AT, _TIME_AT = 32, 40
# Of the progress in a slot.
_PROGRESS = 4
_NEVER = float("inf")
# Finished and failed jobs; then flags: resigned, alive, cut off, running a plain RQ job.
_COUNTS = struct.Struct("<qq")
_TAIL = struct.Struct("<qq4?")
_TAIL_AT = SLOTS * _SLOT.size
_RESIGNED_AT, _ALIVE_AT, _CUT_OFF_AT, _PLAIN_JOB_AT = range(_TAIL_AT + _COUNTS.size, _TAIL_AT + _TAIL.size)
# Last, the process' name; a host name has up to 255 bytes.
_WORKER_AT, _WORKER_SIZE = _TAIL_AT + _TAIL.size, 512
_NO_SALT = -1


class Progress(IntEnum):
    """Progress of a job."""

    NONE = 0
    # Waits to run, or raised: it will run again.
    CLAIMED = 1
    RUNNING = 2
    # Returned, not recorded yet.
    FINISHED = 3
    # Finished itself, perhaps not durably; or with a result that may not be recorded.
    COMMITTED = 4


# Packing an enum takes 0.3 us more.
_NONE, _CLAIMED, _RUNNING, _FINISHED, _COMMITTED = map(int, Progress)


class Entry(NamedTuple):
    """Job in the journal; its process is killed if it still runs at `kill_at` (`monotonic()`)."""

    fence: Fence
    delivery: int
    progress: Progress
    kill_at: float


class Journal:
    """Jobs and state of a slot's successive processes.

    The process writes, each entry by one thread at a time; the supervisor reads, and calls `close`.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _WORKER_AT + _WORKER_SIZE)
        self._free = list(reversed(range(SLOTS)))
        self._worker = ""
        # Of earlier processes.
        self._before = (0, 0)

    @property
    def room(self) -> int:
        """Free slots."""
        return len(self._free)

    @property
    def resigned(self) -> bool:
        """True if the process ends on purpose and wants no replacement."""
        return bool(self._memory[_RESIGNED_AT])

    @resigned.setter
    def resigned(self, value: bool) -> None:
        self._memory[_RESIGNED_AT] = value

    @property
    def is_alive(self) -> bool:
        """True while a process works."""
        return bool(self._memory[_ALIVE_AT])

    @property
    def is_cut_off(self) -> bool:
        """True if the process cannot reach a store."""
        return bool(self._memory[_CUT_OFF_AT])

    @is_cut_off.setter
    def is_cut_off(self, value: bool) -> None:
        self._memory[_CUT_OFF_AT] = value

    @property
    def counts(self) -> tuple[int, int]:
        """Finished and failed jobs of all the slot's processes."""
        finished, failed = _COUNTS.unpack_from(self._memory, _TAIL_AT)
        return finished, failed

    def count(self, finished: int, failed: int) -> None:
        """Set this process' finished and failed jobs."""
        before = self._before
        self._write(_TAIL_AT, _COUNTS.pack(before[0] + finished, before[1] + failed))

    @property
    def runs_plain_job(self) -> bool:
        """True while a plain RQ job runs, awaited beyond the grace period."""
        return bool(self._memory[_PLAIN_JOB_AT])

    @runs_plain_job.setter
    def runs_plain_job(self, value: bool) -> None:
        self._memory[_PLAIN_JOB_AT] = value

    def add(self, claim: Fenced, delivery: int) -> int:
        """Add a claimed job and return its slot."""
        if claim.worker != self._worker:
            self._worker = claim.worker
            self._write(_WORKER_AT, self._worker.encode().ljust(_WORKER_SIZE, b"\0"))
        slot = self._free.pop() * _SLOT.size
        salt = _NO_SALT if claim.salt is None else claim.salt
        self._write(slot, _SLOT.pack(claim.id, claim.fencing_token, salt, delivery, _CLAIMED, _NEVER))
        return slot

    def begin(self, slot: int, kill_at: float) -> None:
        """Note a job's beginning, and its process' kill time (`monotonic()`)."""
        self._write(slot + _STATE_AT, _STATE_AND_TIME.pack(_RUNNING, kill_at))

    def finish(self, slot: int) -> None:
        """Note that the function returned."""
        self._write(slot + _STATE_AT, _STATE_AND_TIME.pack(_FINISHED, _NEVER))

    def commit(self, slot: int) -> None:
        """Note that only the database knows whether the ended job is finished."""
        self._write(slot + _STATE_AT, _STATE_AND_TIME.pack(_COMMITTED, _NEVER))

    def end(self, slot: int) -> None:
        """Note that the function raised: if the process dies, the job runs again."""
        self._write(slot + _STATE_AT, _STATE_AND_TIME.pack(_CLAIMED, _NEVER))

    def clear(self, slot: int) -> None:
        """Free a slot."""
        self._write(slot + _STATE_AT, _STATE.pack(_NONE))
        self._free.append(slot // _SLOT.size)

    def entries(self) -> list[Entry]:
        """List the jobs, also after the process' death."""
        worker = self._claimed_by()
        return [_entry(slot, worker) for slot in self._slots() if slot[_PROGRESS]]

    def is_overdue(self) -> bool:
        """Return True if a job is past its kill time."""
        now = monotonic()
        return any(progress == _RUNNING and kill_at < now for *_, progress, kill_at in self._slots())

    def close(self) -> None:
        """Note the process' end; its jobs stay, none overdue."""
        self._memory[_ALIVE_AT] = self.runs_plain_job = False
        for number in range(SLOTS):
            self._write(number * _SLOT.size + _TIME_AT, _TIME.pack(_NEVER))

    def forget(self, entries: Sequence[Entry]) -> None:
        """Free the slots of an earlier process' jobs."""
        fences, worker = {entry.fence for entry in entries}, self._claimed_by()
        for number, slot in enumerate(self._slots()):
            if slot[_PROGRESS] and _entry(slot, worker).fence in fences:
                self._write(number * _SLOT.size + _STATE_AT, _STATE.pack(_NONE))

    def open(self) -> None:
        """Note the start of a process; an earlier one's jobs keep their slots."""
        self.resigned = self.is_cut_off = self.runs_plain_job = False
        self._before = self.counts
        self._memory[_ALIVE_AT] = True
        free = [number for number, (*_, progress, _) in enumerate(self._slots()) if not progress]
        self._free = free[::-1]

    def _write(self, at: int, packed: bytes) -> None:
        # `pack_into` writes zeros first, which the supervisor could read as a kill time.
        self._memory[at : at + len(packed)] = packed

    def _claimed_by(self) -> str:
        return self._memory[_WORKER_AT : _WORKER_AT + _WORKER_SIZE].rstrip(b"\0").decode()

    def _slots(self) -> Iterator[tuple[int, int, int, int, int, float]]:
        return _SLOT.iter_unpack(self._memory[: SLOTS * _SLOT.size])


def _entry(slot: tuple[int, int, int, int, int, float], worker: str) -> Entry:
    job_id, token, salt, delivery, progress, kill_at = slot
    fence = Fence(job_id, token, None if salt == _NO_SALT else salt, worker)
    return Entry(fence, delivery, Progress(progress), kill_at)

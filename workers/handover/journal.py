"""What a worker process holds, in memory that it shares with its supervisor: it can be read after its death.

Each job in hand has a slot: its id, its token, how far it is, and when its process is to be killed. So whoever comes
after a process that was killed knows which of its jobs had not begun, which one was running, and which had ended.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from time import monotonic
from typing import NamedTuple

SLOTS = 4096

_SLOT = struct.Struct("<qqqqd")
_STATE = struct.Struct("<q")
_TIME = struct.Struct("<d")
_STATE_AND_TIME = struct.Struct("<qd")
_STATE_AT, _TIME_AT = 24, 32
_NEVER = float("inf")
# Jobs that have finished, and those that have not; then a byte each: the process ends on purpose,
# lives, is cut off, waits without bound.
_COUNTS = struct.Struct("<qq")
_TAIL = struct.Struct("<qq4?")
_TAIL_AT = SLOTS * _SLOT.size
_RESIGNED_AT, _ALIVE_AT, _CUT_OFF_AT, _PATIENT_AT = range(_TAIL_AT + _COUNTS.size, _TAIL_AT + _TAIL.size)


class Progress(IntEnum):
    """How far a job is."""

    NONE = 0
    TAKEN = 1
    RUNNING = 2
    # Its function has returned, and nothing is left but to write that down.
    FINISHED = 3


# As plain numbers: an enum costs a third of a microsecond each time that it is packed.
_NONE, _TAKEN, _RUNNING, _FINISHED = map(int, Progress)


class Entry(NamedTuple):
    """A job that a process held."""

    job_id: int
    token: int
    delivery: int
    progress: Progress
    kill_at: float


class Journal:
    """The slots of one seat; they outlive the process that sits there.

    Written by that process alone, one slot by one thread at a time, and read by the supervisor.
    """

    def __init__(self) -> None:
        # Behind the slots: what the process says of itself, and how many jobs have ended on this seat.
        self._memory = mmap.mmap(-1, _TAIL_AT + _TAIL.size)
        self._free = list(reversed(range(SLOTS)))
        self._before = (0, 0)

    @property
    def room(self) -> int:
        """How many jobs more can be taken."""
        return len(self._free)

    @property
    def resigned(self) -> bool:
        """Whether the process ends on purpose, and nobody is to take its place."""
        return bool(self._memory[_RESIGNED_AT])

    @resigned.setter
    def resigned(self, value: bool) -> None:
        self._memory[_RESIGNED_AT] = value

    @property
    def is_alive(self) -> bool:
        """Whether a process sits here and has begun to work."""
        return bool(self._memory[_ALIVE_AT])

    @property
    def is_cut_off(self) -> bool:
        """Whether the process cannot reach one of its stores, as far as it knows."""
        return bool(self._memory[_CUT_OFF_AT])

    @is_cut_off.setter
    def is_cut_off(self, value: bool) -> None:
        self._memory[_CUT_OFF_AT] = value

    @property
    def ended(self) -> tuple[int, int]:
        """How many jobs have finished on this seat so far, and how many have not."""
        finished, failed = _COUNTS.unpack_from(self._memory, _TAIL_AT)
        return finished, failed

    def count(self, finished: int, failed: int) -> None:
        """So many jobs have ended in this process."""
        before = self._before
        _COUNTS.pack_into(self._memory, _TAIL_AT, before[0] + finished, before[1] + failed)

    @property
    def is_patient(self) -> bool:
        """Whether a plain RQ job runs, which the process waits for beyond its time of grace."""
        return bool(self._memory[_PATIENT_AT])

    @is_patient.setter
    def is_patient(self, value: bool) -> None:
        self._memory[_PATIENT_AT] = value

    def take(self, job_id: int, token: int, delivery: int) -> int:
        """Note a job that has been claimed; returns its slot."""
        slot = self._free.pop() * _SLOT.size
        _SLOT.pack_into(self._memory, slot, job_id, token, delivery, _TAKEN, _NEVER)
        return slot

    def begin(self, slot: int, kill_at: float) -> None:
        """Its job begins, and must be over by then, by the monotonic clock."""
        _STATE_AND_TIME.pack_into(self._memory, slot + _STATE_AT, _RUNNING, kill_at)

    def finish(self, slot: int) -> None:
        """Its function has returned."""
        _STATE_AND_TIME.pack_into(self._memory, slot + _STATE_AT, _FINISHED, _NEVER)

    def end(self, slot: int) -> None:
        """Its function has raised: what is to become of it, nobody else knows, so that it will be run once more."""
        _STATE_AND_TIME.pack_into(self._memory, slot + _STATE_AT, _TAKEN, _NEVER)

    def clear(self, slot: int) -> None:
        """Nothing is left to be done for it."""
        _STATE.pack_into(self._memory, slot + _STATE_AT, _NONE)
        self._free.append(slot // _SLOT.size)

    def entries(self) -> list[Entry]:
        """What is held, or was when the process died."""
        return [
            Entry(job_id, token, delivery, Progress(progress), kill_at)
            for job_id, token, delivery, progress, kill_at in self._slots()
            if progress
        ]

    def is_overdue(self) -> bool:
        """Whether a job runs that should have been over."""
        now = monotonic()
        return any(progress == _RUNNING and kill_at < now for *_, progress, kill_at in self._slots())

    def bequeath(self) -> None:
        """The process has died: nothing that it has left behind is overdue any more, and it waits for nothing."""
        self._memory[_ALIVE_AT] = self.is_patient = False
        for number in range(SLOTS):
            _TIME.pack_into(self._memory, number * _SLOT.size + _TIME_AT, _NEVER)

    def forget(self, entries: Sequence[Entry]) -> None:
        """Clear the slots of these jobs, which a process before this one held."""
        tokens = {(entry.job_id, entry.token) for entry in entries}
        for number, (job_id, token, _, progress, _) in enumerate(self._slots()):
            if progress and (job_id, token) in tokens:
                _STATE.pack_into(self._memory, number * _SLOT.size + _STATE_AT, _NONE)

    def sit_down(self) -> None:
        """A new process begins here: what is in use stays so."""
        self.resigned = self.is_cut_off = self.is_patient = False
        self._before = self.ended
        self._memory[_ALIVE_AT] = True
        free = [number for number, (*_, progress, _) in enumerate(self._slots()) if not progress]
        self._free = free[::-1]

    def _slots(self) -> Iterator[tuple[int, int, int, int, float]]:
        return _SLOT.iter_unpack(self._memory[: SLOTS * _SLOT.size])

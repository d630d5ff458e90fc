"""Stack of an isolated job: asked by the worker process, answered by a thread of the job's.

No signal, which could break a system call. The thread starts after a second and sleeps in a read.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from time import monotonic

from drain.database.deadline import call_at
from drain.workers.lease.frames import Frame, Stack
from drain.workers.lease.interruption import Interruption

_AFTER_SECONDS = 1.0
# Includes the start of the thread.
_PATIENCE_SECONDS = 2.5
_LONGEST_ANSWER = 200_000
_NUMBERS = 200


class ChildStack:
    """Channel to an isolated job's process; created before the fork."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._asking = threading.Lock()
        self._number = 0
        self._pid = 0

    def answer_for(self, interruption: Interruption) -> None:
        """Answer from now on; in the child."""
        self._ours.close()

        def start() -> None:
            with suppress(RuntimeError):
                threading.Thread(
                    target=_answer, args=(self._theirs, interruption), name="stack", daemon=True
                ).start()

        call_at(monotonic() + _AFTER_SECONDS, start)

    def follow(self, pid: int) -> None:
        """Set the child's id; in the parent."""
        self._theirs.close()
        self._pid = pid

    def ask(self) -> Stack:
        """Return the job's stack; for any thread of the parent."""
        place = f"process {self._pid}"
        with self._asking:
            # A late answer to an earlier question has another number.
            self._number = self._number % _NUMBERS + 1
            try:
                self._ours.sendall(bytes([self._number]))
                found = self._receive(monotonic() + _PATIENCE_SECONDS)
            except (OSError, ValueError, TypeError):
                found = None
        if found is None:
            return Stack(place, None, [])
        return Stack(f"{place}, {found.place}", found.frames, found.beside)

    def close(self) -> None:
        """Close both ends; a waiting thread gets no answer."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        with self._asking:
            self._ours.close()
            self._theirs.close()

    def _receive(self, until: float) -> Stack | None:
        answer = b""
        while len(answer) < _LONGEST_ANSWER:
            self._ours.settimeout(max(0.001, until - monotonic()))
            if not (more := self._ours.recv(65_536)):
                return None
            answer += more
            while b"\n" in answer:
                line, _, answer = answer.partition(b"\n")
                number, place, frames, beside = json.loads(line)
                if number == self._number:
                    return Stack(place, _read(frames), _read(beside))
        return None


def _answer(asked: socket.socket, interruption: Interruption) -> None:
    pid = os.getpid()
    with suppress(OSError):
        while (number := asked.recv(1)) and os.getpid() == pid:
            found = interruption.frames() or Stack("", [], [])
            asked.sendall(json.dumps([number[0], *found]).encode() + b"\n")


def _read(frames: list[tuple[str, int, str]]) -> list[Frame]:
    return [(str(path), int(line), str(name)) for path, line, name in frames]

"""Channel between a worker process and its RQ process: a socket with one JSON array per line.

To RQ:     [queue, rq id]    run this plain RQ job
From RQ:   ["ready", name]   the last job, if any, has ended; the name of RQ's worker
           ["waits"]         RQ's worker cannot start: Redis is unavailable or refuses
           ["bye"]           RQ's worker has shut down
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

READY, WAITS, BYE = "ready", "waits", "bye"
_BYTES_AT_A_TIME = 65536


class Channel:
    """One end, for one thread at a time; forked children close it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unread = b""
        # A job's children would hide the end of its process.
        os.register_at_fork(after_in_child=sock.close)

    def send(self, *words: str) -> None:
        """Send a message; EOFError if either end is closed."""
        try:
            self._sock.settimeout(None)
            self._sock.sendall(json.dumps(words).encode() + b"\n")
        except OSError as error:
            raise EOFError from error

    def receive(self, seconds: float) -> Sequence[str] | None:
        """Return the next message; None at the timeout, EOFError once closed."""
        while b"\n" not in self._unread:
            if not self._read(seconds):
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        words: Any = json.loads(line)
        return [str(word) for word in words]

    def pause(self, seconds: float) -> None:
        """Sleep, keeping messages for `receive`; EOFError once closed."""
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0 and self._read(left):
            sleep(min(0.1, left))

    def end(self) -> None:
        """Signal that no more messages follow."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def _read(self, seconds: float) -> bool:
        try:
            self._sock.settimeout(seconds)
            read = self._sock.recv(_BYTES_AT_A_TIME)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as error:
            raise EOFError from error
        if not read:
            raise EOFError
        self._unread += read
        return True

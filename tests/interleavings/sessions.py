"""Connections of the gate to the servers. PostgreSQL's processes go from a killed program to the next one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import count
from time import monotonic

_LOOK_SECONDS = 0.012
_PATIENCE_SECONDS = 30.0
_OVER = b"session is over"
_READY = b"Z\x00\x00\x00\x05I"
_RESET = (
    b"ROLLBACK; CLOSE ALL; RESET ALL; UNLISTEN *; DISCARD SEQUENCES; SELECT pg_advisory_unlock_all(), '%s'"
)


class Session:
    """A connection to a server.

    Attributes:
        startup: The message that began it, for PostgreSQL.
        greeting: The answer to it.
        pid: Of PostgreSQL's process; 0 for Redis.
        is_busy: PostgreSQL has not answered yet.
    """

    def __init__(self, server: str, startup: bytes = b"") -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(server)
        self.startup, self.greeting = startup, b""
        self.pid = 0
        self.is_busy = False
        self._tail = b""
        self._names = (b"s%d" % number for number in count(1))
        self._statements: dict[bytes, bytes] = {}
        self._parsing: list[tuple[bytes, bytes]] = []
        self.send(startup)

    def send(self, data: bytes) -> None:
        """Send a request; PostgreSQL keeps each statement and its plan, as for a program that prepares them."""
        self.is_busy = True
        self.socket.sendall(self._prepared(data) if data[:1] == b"P" else data)

    def _prepared(self, data: bytes) -> bytes:
        sent, name = [], b""
        for kind, body in _messages(data):
            if kind == b"P" and body[:1] == b"\0":
                name = self._statements.get(body, b"")
                if not name:
                    name = next(self._names)
                    self._parsing.append((body, name))
                    sent.append(_message(kind, name + body))
            elif kind == b"B" and body[:2] == b"\0\0":
                sent.append(_message(kind, b"\0" + name + body[1:]))
            else:
                sent.append(_message(kind, body))
        return b"".join(sent)

    def receive(self) -> bytes:
        """Return a part of an answer; nothing at the end."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return b""
        if self._parsing:
            # One that is not confirmed is parsed again, under another name.
            parsed = sum(kind == b"1" for kind, _ in _messages(data))
            self._statements.update(self._parsing[:parsed])
            self._parsing.clear()
        self._tail = (self._tail + data[-6:])[-6:]
        self.is_busy = not self._tail.startswith(_READY[:-1])
        if self.startup and not self.pid:
            self.greeting += data
            if self.greeting.endswith(_READY):
                at = self.greeting.index(b"K\x00\x00\x00\x0c")
                self.pid = int.from_bytes(self.greeting[at + 5 : at + 9], "big")
        return data

    def start_over(self, is_waiting: Callable[[int], bool]) -> bool:
        """Let the last statement end, and then all that ends with a session.

        Returns:
            False if the session is lost, or its last statement waits for a lock.
        """
        self._parsing.clear()
        # A Sync, for a statement that was sent without one.
        self.socket.sendall(_message(b"S", b"") + _message(b"Q", _RESET % _OVER + b"\0"))
        self.socket.settimeout(_LOOK_SECONDS)
        answer, deadline = b"", monotonic() + _PATIENCE_SECONDS
        while not (_OVER in answer and answer.endswith(_READY)):
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                if is_waiting(self.pid):
                    return False
                if monotonic() > deadline:
                    raise AssertionError("a killed program's statement goes on") from None
                continue
            if not data:
                return False
            answer += data
        self.socket.settimeout(None)
        self.is_busy = False
        return True


def _messages(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 0
    while at < len(data):
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        found.append((data[at : at + 1], data[at + 5 : end]))
        at = end
    return found


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body

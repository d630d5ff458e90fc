"""Poolers: the real PgBouncer where it is installed, and a small one that is always there."""

import os
import secrets
import shutil
import socket
import struct
import threading
from collections import deque
from contextlib import closing, suppress
from itertools import cycle
from typing import IO, Literal, Self, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from drain.embedded.binaries import unprivileged_account
from drain.embedded.guarded_server import GuardedServer
from drain.embedded.server_process import Credentials
from tests.helpers import free_port

Mode: TypeAlias = Literal["session", "transaction"]
Order: TypeAlias = Literal["last", "first"]

READY = b"Z\0\0\0\5I"
PGBOUNCER = shutil.which(
    "pgbouncer", path=os.pathsep.join([*os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"])
)


class PgBouncer(GuardedServer):
    """A PgBouncer in front of one server, that takes anybody.

    Args:
        database_url: Where it leads; a server on a Unix socket.
        mode: Its pool_mode; from the next start on, if it is changed later.
        size: The most sessions that it opens.
    """

    title = "PgBouncer"
    # The others may wait until all clients are gone.
    stop_signal = "QUIT"

    def __init__(self, database_url: str, mode: str, *, size: int = 20) -> None:
        super().__init__(None)
        self.mode = mode
        self._size = size
        self._target = conninfo_to_dict(database_url)
        self._port = free_port()
        self.url = f"postgresql://anybody@127.0.0.1:{self._port}/{self._target['dbname']}"

    def launch(self) -> None:
        self.directory.chmod(0o711)
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": self.mode,
            "default_pool_size": self._size,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        host, user = self._target["host"], self._target["user"]
        path = self.directory / "pgbouncer.ini"
        path.write_text("\n".join(["[databases]", f"* = host={host} user={user}", "[pgbouncer]", *lines, ""]))
        self.run([str(PGBOUNCER), path], _account())

    def answers(self) -> bool:
        with suppress(psycopg.OperationalError), closing(psycopg.connect(self.url, connect_timeout=5)):
            return True
        return False


def _account() -> Credentials:
    # It refuses to run as root.
    if os.geteuid() != 0:
        return {}
    account = unprivileged_account()
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


class SmallPooler:
    """Shares a few sessions of a server among all who connect, and knows just enough of the protocol for that.

    Args:
        database_url: Where it leads; a server on a Unix socket that asks for no password.
        mode: When a session goes back: as its client leaves, or as its transaction ends.
        size: The most sessions of one pool.
        order: Which of several idle sessions is next.
        pools: So many of its kind are behind the one address, and take the clients in turn.
    """

    def __init__(
        self, database_url: str, mode: Mode, *, size: int = 20, order: Order = "last", pools: int = 1
    ) -> None:
        self.mode = mode
        self.pools = [_Pool(database_url, size, order) for _ in range(pools)]
        self._listener = socket.create_server(("127.0.0.1", 0))
        place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = (
            f"postgresql://anybody@{place}/{conninfo_to_dict(database_url)['dbname']}?gssencmode=disable"
        )

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def waiting(self) -> int:
        """How many clients wait for a session."""
        return sum(pool.waiting for pool in self.pools)

    def _accept(self) -> None:
        with suppress(OSError):
            for pool in cycle(self.pools):
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client, pool), daemon=True).start()

    def _serve(self, client: socket.socket, pool: "_Pool") -> None:
        session: _Session | None = None
        with client, client.makefile("rb") as stream, suppress(OSError, EOFError):
            _refuse_encryption(client, stream)
            client.sendall(pool.greeting + b"K" + struct.pack("!i", 12) + secrets.token_bytes(8) + READY)
            while (frame := _read_frame(stream))[:1] != b"X":
                session = session or pool.take()
                session.socket.sendall(frame)
                if frame[:1] in b"QS" and session.relay(client) == b"I" and self.mode == "transaction":
                    pool.give_back(session)
                    session = None
        if session is not None:
            pool.end(session)


class _Session:
    def __init__(self, database_url: str) -> None:
        target = {name: str(text) for name, text in conninfo_to_dict(database_url).items()}
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"{target['host']}/.s.PGSQL.{target.get('port', 5432)}")
        self._stream = self.socket.makefile("rb")
        words = ["user", target["user"], "database", target["dbname"], ""]
        startup = b"".join(word.encode() + b"\0" for word in words)
        self.socket.sendall(struct.pack("!ii", len(startup) + 8, 196_608) + startup)
        self.greeting = b""
        while (frame := _read_frame(self._stream)) != READY:
            self.greeting += frame if frame[:1] in b"RS" else b""

    def relay(self, client: socket.socket) -> bytes:
        """Pass on what the server answers; returns the state of the transaction after that."""
        while True:
            frame = _read_frame(self._stream)
            client.sendall(frame)
            if frame[:1] == b"Z":
                return frame[-1:]


class _Pool:
    def __init__(self, database_url: str, size: int, order: Order) -> None:
        self._database_url = database_url
        self._room = size
        self._order = order
        self._idle: deque[_Session] = deque()
        self._changed = threading.Condition()
        self.waiting = 0
        session = self.take()
        self.greeting = session.greeting
        self.give_back(session)

    def take(self) -> _Session:
        with self._changed:
            self.waiting += 1
            # Who comes later waits behind those who wait already.
            self._changed.wait_for(lambda: self._idle or self._room)
            self.waiting -= 1
            if self._idle:
                return self._idle.pop() if self._order == "last" else self._idle.popleft()
            self._room -= 1
        return _Session(self._database_url)

    def give_back(self, session: _Session) -> None:
        with self._changed:
            self._idle.append(session)
            self._changed.notify()

    def end(self, session: _Session) -> None:
        session.socket.close()
        with self._changed:
            self._room += 1
            self._changed.notify()


def _read_frame(stream: IO[bytes]) -> bytes:
    head = _read(stream, 5)
    return head + _read(stream, int.from_bytes(head[1:], "big") - 4)


def _read(stream: IO[bytes], size: int) -> bytes:
    if len(data := stream.read(size)) < size:
        raise EOFError
    return data


def _refuse_encryption(client: socket.socket, stream: IO[bytes]) -> None:
    """Read on until the client has said who it is."""
    while True:
        size, code = struct.unpack("!ii", _read(stream, 8))
        _read(stream, size - 8)
        if code >> 16 == 3:
            return
        client.sendall(b"N")

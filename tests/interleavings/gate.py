"""Holds each statement and each Redis command of programs on threads, until it is released."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.interleavings.sessions import Session

_PATIENCE_SECONDS = 30.0
# A statement without an answer for this long may wait for a lock; each look that finds none doubles it.
_LOOK_SECONDS = 0.012
_RELEASE_SECONDS = 0.01
_TERMINATE = b"X"
# Names of sockets; libpq demands the first one.
_POSTGRES, _REDIS = ".s.PGSQL.5432", "redis"
_WAITING = "SELECT pid FROM pg_catalog.pg_locks WHERE NOT granted AND pid = ANY (%s)"
_CONNECTED = "SELECT pid FROM pg_catalog.pg_stat_activity WHERE pid = ANY (%s)"


class KilledError(Exception):
    """Ends a program that goes on after its kill."""


class Link:
    """One connection of a program, and its held request."""

    def __init__(self, actor: Actor, client: socket.socket) -> None:
        self.actor, self.client = actor, client
        # PostgreSQL's begins with the client's first message.
        self.session: Session | None = None
        self.held = b""

    @property
    def pid(self) -> int:
        """Of PostgreSQL's process; 0 for Redis."""
        return self.session.pid if self.session else 0

    def send(self, data: bytes) -> None:
        """Send a request to the server."""
        assert self.session
        self.session.send(data)

    def release(self) -> None:
        """Send its held request."""
        if not self.pid:
            self.actor.gate.redis_requests += 1
        self.held, data = b"", self.held
        self.send(data)


class Actor:
    """A program on a thread of its own, whose connections go through the gate.

    Attributes:
        is_running: Neither held, nor paused, nor at its end.
        is_blocked: Its released statement waits for a lock.
        is_free: Nothing is held, as while it connects.
        kept: Clients, for the next program of this name; those of a killed one are gone.
        failure: What ended the program, unless it was killed.
    """

    def __init__(self, gate: Gate, name: str, program: Callable[[Actor], None]) -> None:
        self.name = name
        self.gate = gate
        self._program = program
        self.links: list[Link] = []
        self.kept: dict[str, Any] = {}
        self.is_running = self.is_blocked = self.is_free = self.is_paused = self.has_ended = False
        self.is_killed = False
        self.failure: BaseException | None = None
        self._until: Callable[[], bool] = lambda: True
        self._go_on = threading.Semaphore(0)

    def start(self) -> None:
        """Start the thread; the program begins at a pause."""
        self.is_running = True
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self.pause()
            self._program(self)
        except BaseException as error:  # noqa: BLE001
            if not self.is_killed:
                self.failure = error
        self.has_ended = True
        self.is_running = False
        self.gate.wake()

    def pause(self, until: Callable[[], bool] = lambda: True) -> None:
        """Let others go on until there is something to do.

        Raises:
            KilledError: It has been killed, or nothing is left to do.
        """
        self._until = until
        self.is_paused = True
        self.is_running = False
        self.gate.wake()
        # A rollback may have hidden that the connection is gone.
        if not self.is_killed:
            self._go_on.acquire()
        if self.is_killed:
            raise KilledError

    @contextmanager
    def freely(self) -> Iterator[None]:
        """Hold nothing in this block."""
        self.is_free = True
        try:
            yield
        finally:
            self.is_free = False

    @property
    def can_go_on(self) -> bool:
        """True if it is held, or has something to do."""
        return (self.is_paused and self._until()) or any(link.held for link in self.links)

    def retire(self) -> None:
        """End it, as nothing is left to do."""
        self.is_killed = True
        self.release()

    def release(self) -> None:
        """Send its held request, or end its pause."""
        self.gate.time += _RELEASE_SECONDS
        self.is_running = True
        if self.is_paused:
            self.is_paused = False
            self._go_on.release()
        for link in self.links:
            if link.held:
                link.release()


class Gate:
    """Stands between all actors and both servers, on the caller's thread.

    Attributes:
        passes: True for requests that are not held.
        redis_requests: Grows with each that was held.
        statements: Grows with each answer of PostgreSQL, and each kill.
        commits: Grows with each answer after which no transaction is open, each kill and each fault.
        events: Grows with each event that a leader should look for.
        time: Seconds of the leaders' clocks, which stand still between releases.

    Args:
        directory: For the sockets, one pair for each actor.
        control: A connection past the gate.
        redis: Path of the server's socket.
    """

    def __init__(self, directory: Path, control: psycopg.Connection[Any], redis: str) -> None:
        self._directory = directory
        self._control = control
        self._postgres = f"{control.info.host}/.s.PGSQL.{control.info.port}"
        self._redis = redis
        # By their startup messages.
        self._idle: dict[bytes, list[Session]] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wakes)
        self.redis_requests = self.statements = self.commits = self.events = 0
        self.time = 0.0
        self.passes: Callable[[bytes], bool] = lambda _: False
        self._actors: dict[str, Actor] = {}
        self._listeners: dict[str, list[socket.socket]] = {}

    def add(self, name: str, program: Callable[[Actor], None]) -> Actor:
        """Start a program under a name, whose connections of before it may take over."""
        before = self._actors.get(name)
        actor = self._actors[name] = Actor(self, name, program)
        if before is not None and before.links:
            actor.links, actor.kept = before.links, before.kept
            for link in actor.links:
                link.actor = actor
        if name not in self._listeners:
            place = self.place(name)
            place.mkdir()
            self._listeners[name] = [self._listen(name, place / each) for each in (_POSTGRES, _REDIS)]
        actor.start()
        self.settle([actor])
        return actor

    def place(self, name: str) -> Path:
        """Directory of an actor's sockets."""
        return self._directory / name.replace(" ", "-")

    def database_url(self, name: str) -> str:
        """URL of the database through the gate."""
        return make_conninfo(self._control.info.dsn, host=str(self.place(name)), port="5432")

    def close(self) -> None:
        """End all connections."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for sessions in self._idle.values():
            for session in sessions:
                session.socket.close()
        self._waker.close()
        self._selector.close()

    def wake(self) -> None:
        """Let `settle` look again."""
        with suppress(OSError):
            self._waker.send(b".")

    def settle(self, actors: Collection[Actor]) -> None:
        """Wait until each actor is held, paused, at its end, or waits for a lock of the database."""
        deadline = monotonic() + _PATIENCE_SECONDS
        while True:
            self._wait_for_running(actors, deadline)
            blocked = [actor for actor in actors if actor.is_blocked]
            if not blocked:
                return
            self._look_for_locks(blocked)
            if all(actor.is_blocked for actor in blocked):
                return

    def _wait_for_running(self, actors: Collection[Actor], deadline: float) -> None:
        look_at, pause = monotonic() + _LOOK_SECONDS, _LOOK_SECONDS
        while running := [actor for actor in actors if actor.is_running and not actor.is_blocked]:
            for key, _ in self._selector.select(_LOOK_SECONDS):
                key.data()
            now = monotonic()
            if now > deadline:
                raise AssertionError(f"neither held nor blocked: {[each.name for each in running]}")
            if now > look_at:
                pause *= 2
                look_at = now + pause
                self._look_for_locks(running)

    def _look_for_locks(self, actors: Collection[Actor]) -> None:
        pids = [link.pid for actor in actors for link in actor.links if link.session and link.session.is_busy]
        waiting = self._waiting(pids) if any(pids) else set()
        for actor in actors:
            actor.is_blocked = actor.is_running and any(link.pid in waiting for link in actor.links)

    def kill(self, actor: Actor, *, is_answer_lost: bool) -> None:
        """End an actor's connections and what they have begun, unless a statement waits for a lock.

        Args:
            is_answer_lost: The held statement is executed first.
        """
        actor.is_killed = True
        self.statements += 1
        self.commits += 1
        pids = []
        for link in list(actor.links):
            if is_answer_lost and link.held:
                link.release()
                if link.session and not link.pid:
                    # Redis has executed it once it answers; PostgreSQL, once the session is over.
                    link.session.receive()
            if not self._takes_back(link):
                pids.append(link.pid)
                self._close(link)
        if actor.is_paused:
            actor.is_paused = False
            actor._go_on.release()
        deadline = monotonic() + _PATIENCE_SECONDS
        while not actor.has_ended or (any(pids) and self._are_connected(pids)):
            for key, _ in self._selector.select(0.001):
                key.data()
            if monotonic() > deadline:
                raise AssertionError(f"{actor.name} survives its kill")

    def _takes_back(self, link: Link) -> bool:
        """Keep a session of PostgreSQL for another link, if it has nothing left to do."""
        session = link.session
        if not session or not session.pid:
            return False
        self._leave(link.client)
        if not session.start_over(lambda pid: bool(self._waiting([pid]))):
            return False
        self._selector.unregister(session.socket)
        link.actor.links.remove(link)
        self._idle.setdefault(session.startup, []).append(session)
        return True

    def _waiting(self, pids: list[int]) -> set[int]:
        return {pid for (pid,) in self._control.execute(_WAITING, (pids,))}

    def _are_connected(self, pids: list[int]) -> bool:
        connected = {pid for (pid,) in self._control.execute(_CONNECTED, (pids,))}
        # A server process that waits for a lock does not see that its client is gone.
        return bool(connected - self._waiting(pids))

    def _listen(self, name: str, path: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            client, _ = listener.accept()
            actor = self._actors[name]
            if actor.is_killed:
                client.close()
                return
            link = Link(actor, client)
            actor.links.append(link)
            self._selector.register(client, selectors.EVENT_READ, lambda: self._from_client(link))
            if path.name == _REDIS:
                self._attach(link, Session(self._redis))

        self._selector.register(listener, selectors.EVENT_READ, accept)
        return listener

    def _begin(self, link: Link, startup: bytes) -> None:
        if idle := self._idle.get(startup):
            session = idle.pop()
            self._attach(link, session)
            link.client.sendall(session.greeting)
        else:
            self._attach(link, Session(self._postgres, startup))

    def _attach(self, link: Link, session: Session) -> None:
        link.session = session
        self._selector.register(
            session.socket, selectors.EVENT_READ, lambda: self._from_server(link, session)
        )

    def _from_client(self, link: Link) -> None:
        data = _received(link.client)
        if not data:
            self._selector.unregister(link.client)
            if link.session:
                with suppress(OSError):
                    link.session.socket.shutdown(socket.SHUT_WR)
        elif not link.session:
            self._begin(link, data)
        elif link.actor.is_free or data[:1] == _TERMINATE or self.passes(data):
            link.send(data)
        else:
            link.held += data
            link.actor.is_running = False

    def _from_server(self, link: Link, session: Session) -> None:
        data = session.receive()
        if not data:
            self._close(link)
            return
        if session.pid and not session.is_busy:
            self.statements += 1
            self.commits += data[-1:] == b"I"
        with suppress(OSError):
            link.client.sendall(data)

    def _close(self, link: Link) -> None:
        if link in link.actor.links:
            link.actor.links.remove(link)
            self._leave(link.client)
            if link.session:
                self._leave(link.session.socket)

    def _leave(self, each: socket.socket) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(each)
        each.close()

    def _drain_wakes(self) -> None:
        self._woken.recv(4096)


def _received(each: socket.socket) -> bytes:
    try:
        return each.recv(1 << 16)
    except OSError:
        return b""

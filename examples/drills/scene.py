"""Where a drill takes place: servers and processes of its own, and a record of what happens."""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from programs.child import Child
from programs.processes import Processes
from redis import Redis

from drain.database import postgres
from drain.database.postgres import Connection
from drain.embedded import Services, signals
from drain.errors import DrainError
from drills import books, rows, shop
from drills.jobs import QUEUE
from drills.shop import Order

T = TypeVar("T")

_PATIENCE_SECONDS = 30.0
_STANDSTILL_SECONDS = 30.0
_LOOK_SECONDS = 0.01
_COUNT_SECONDS = 0.05


class DidNotHappenError(DrainError):
    """Something that a drill has waited for did not come."""


class Tell(Protocol):
    """Records an event."""

    def __call__(self, event: str, **details: Any) -> None:
        """Record that `event` has just happened."""


class Scene:
    """A database, the two servers, and the processes that were started.

    Attributes:
        servers: PostgreSQL and Redis, as they run.
        database_url: The drill's own database.
        connection: To that database, in autocommit mode.
        tell: Records an event.
    """

    def __init__(self, servers: Services, database_url: str, processes: Processes, tell: Tell) -> None:
        self.servers = servers
        self.database_url = database_url
        self.tell = tell
        self.connection = self.connect()
        self._processes = processes

    def connect(self) -> Connection:
        """One more connection."""
        return postgres.connect(self.database_url, "drain drill")

    def reconnect(self) -> None:
        """Give up a connection that is broken for a new one."""
        self.close()
        self.connection = self.connect()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def enqueuer(self, name: str) -> Child:
        """Start `drain run`."""
        return self._started(self._processes.drain(name, "run", "--metrics-port", "0"))

    def leader(self, name: str) -> Child:
        """Start `drain run`, and return when it leads."""
        child = self.enqueuer(name)
        self.wait(f"the {name} leads", lambda: child.events("leading"))
        self.tell("leads", process=name)
        return child

    def standby(self, name: str) -> Child:
        """Start `drain run` beside a leader, and return when it stands by."""
        child = self.enqueuer(name)
        self.wait(f"the {name} stands by", lambda: child.events("up"))
        self.tell("stands_by", process=name)
        return child

    def workers(self, *names: str) -> list[Child]:
        """Start `drain work` under each of these names, and return when all are ready for jobs."""
        children = [self._started(self._processes.drain(name, "work", QUEUE)) for name in names]
        with Redis.from_url(self.servers.redis_url) as redis:
            self.wait("the workers are ready", lambda: redis.scard("rq:workers") >= len(names))
        return children

    def rq_worker(self, name: str) -> Child:
        """Start RQ's own worker, unmodified."""
        words = ("worker", "--quiet", "--url", self.servers.redis_url, QUEUE)
        return self._started(self._processes.module(name, "rq.cli", *words))

    def kill(self, child: Child) -> None:
        """SIGKILL a process and its children, as when their machine dies."""
        # Standing still, it does not see them die.
        child.pause()
        signals.send(child.children(), signal.SIGKILL)
        self._processes.kill(child)
        self.tell("killed", process=child.name, signal="SIGKILL")

    def pause(self, child: Child) -> None:
        """SIGSTOP a process."""
        child.pause()
        self.tell("stopped", process=child.name, signal="SIGSTOP")

    def resume(self, child: Child) -> None:
        """SIGCONT a process."""
        child.resume()
        self.tell("continued", process=child.name, signal="SIGCONT")

    def place(self, count: int = 1, *, hold_seconds: float = 0) -> list[Order]:
        """Place orders and commit them."""
        with self.connection.transaction():
            orders = shop.place(self.connection, count, hold_seconds=hold_seconds)
        self.tell("committed", orders=count, first_job_id=orders[0].job_id)
        return orders

    def row(self, statement: str, *parameters: Any) -> tuple[Any, ...] | None:
        """The first row; None if there is none."""
        return rows.first_row(self.connection, statement, *parameters)

    def value(self, statement: str, *parameters: Any) -> Any:
        """The only column of the first row; None if there is no row."""
        return rows.value(self.connection, statement, *parameters)

    def wait(self, what: str, condition: Callable[[], T | None], *, pause: float = _LOOK_SECONDS) -> T:
        """Return the first true value of `condition()`, which is asked every `pause` seconds.

        Raises:
            DidNotHappenError: None came in half a minute.
            DrainError: A process has ended meanwhile.
        """
        deadline = monotonic() + _PATIENCE_SECONDS
        while not (value := condition()):
            self._processes.check()
            if monotonic() > deadline:
                raise DidNotHappenError(f"{what}: not within {_PATIENCE_SECONDS:g} s")
            sleep(pause)
        return value

    def wait_until_all_is_settled(self) -> None:
        """Return once every order is settled, or when none has been for a while."""
        left, deadline = -1, monotonic() + _STANDSTILL_SECONDS
        while monotonic() < deadline:
            self._processes.check()
            before, left = left, books.unfinished(self.connection)
            if not left:
                break
            if left != before:
                deadline = monotonic() + _STANDSTILL_SECONDS
            sleep(_COUNT_SECONDS)
        self.tell("settled", unfinished=left)

    def _started(self, child: Child) -> Child:
        self.tell("started", process=child.name, pid=child.pid)
        return child

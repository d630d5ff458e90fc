"""Scenario of a drill: its database and processes, the actions on them, and the record of events."""

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
from drills import invariants, rows, shop
from drills.jobs import QUEUE
from drills.shop import Order

T = TypeVar("T")

# Timeout for an event.
_PATIENCE_SECONDS = 30.0
# Timeout for the next order to be settled.
_STANDSTILL_SECONDS = 30.0
# Interval between two checks of a condition.
_LOOK_SECONDS = 0.01
# Interval between two counts of unfinished orders.
_COUNT_SECONDS = 0.05


class DidNotHappenError(DrainError):
    """An event that a drill waited for did not happen in time."""


class RecordEvent(Protocol):
    """Function that records an event."""

    def __call__(self, event: str, **details: Any) -> None:
        """Record that `event` has just happened."""


class Scenario:
    """Stage of one drill: its database, the two servers, and the processes that it has started.

    Attributes:
        servers: Running PostgreSQL and Redis.
        database_url: URL of the drill's own database.
        connection: Connection to that database, in autocommit mode.
        record: Records an event.
    """

    def __init__(
        self, servers: Services, database_url: str, processes: Processes, record: RecordEvent
    ) -> None:
        self.servers = servers
        self.database_url = database_url
        self.record = record
        self.connection = self.connect()
        self._processes = processes

    def connect(self) -> Connection:
        """Open a further connection to the drill's database."""
        return postgres.connect(self.database_url, "drain drill")

    def reconnect(self) -> None:
        """Replace the connection, after the server has crashed."""
        self.close()
        self.connection = self.connect()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def enqueuer(self, name: str, *options: str) -> Child:
        """Start `drain run`, and return at once."""
        return self._started(self._processes.drain(name, "run", "--metrics-port", "0", *options))

    def leader(self, name: str, *options: str) -> Child:
        """Start `drain run`, and return when it leads."""
        child = self.enqueuer(name, *options)
        self.wait(f"the {name} leads", lambda: child.events("leading"))
        self.record("leads", process=name)
        return child

    def standby(self, name: str) -> Child:
        """Start `drain run` next to a leader, and return when it stands by."""
        child = self.enqueuer(name)
        self.wait(f"the {name} stands by", lambda: child.events("up"))
        self.record("stands_by", process=name)
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
        """Kill a process and its children by SIGKILL, as when their machine dies."""
        # Stopped first, so that it does not react to the death of its children.
        child.pause()
        signals.send(child.children(), signal.SIGKILL)
        self._processes.kill(child)
        self.record("killed", process=child.name, signal="SIGKILL")

    def pause(self, child: Child) -> None:
        """Stop a process by SIGSTOP."""
        child.pause()
        self.record("stopped", process=child.name, signal="SIGSTOP")

    def resume(self, child: Child) -> None:
        """Continue a process by SIGCONT."""
        child.resume()
        self.record("continued", process=child.name, signal="SIGCONT")

    def place(self, count: int = 1, *, hold_seconds: float = 0) -> list[Order]:
        """Place orders and commit them."""
        with self.connection.transaction():
            orders = shop.place(self.connection, count, hold_seconds=hold_seconds)
        self.record("committed", orders=count, first_job_id=orders[0].job_id)
        return orders

    def row(self, statement: str, *parameters: Any) -> tuple[Any, ...] | None:
        """Query the first row; None if there is none."""
        return rows.first_row(self.connection, statement, *parameters)

    def value(self, statement: str, *parameters: Any) -> Any:
        """Query the only column of the first row; None if there is no row."""
        return rows.value(self.connection, statement, *parameters)

    def wait(self, event: str, condition: Callable[[], T | None], *, pause: float = _LOOK_SECONDS) -> T:
        """Call `condition()` every `pause` seconds, and return its first true value.

        Args:
            event: Sentence for the error if the condition does not come true.
            condition: Returns a false value as long as the event has not happened.
            pause: Seconds between two calls.

        Raises:
            DidNotHappenError: No true value came within half a minute.
            DrainError: A process has ended meanwhile.
        """
        deadline = monotonic() + _PATIENCE_SECONDS
        while not (value := condition()):
            self._processes.check()
            if monotonic() > deadline:
                raise DidNotHappenError(f"{event}: not within {_PATIENCE_SECONDS:g} s")
            sleep(pause)
        return value

    def wait_until_settled(self) -> None:
        """Return once every committed order is settled, or no further order was settled for half a minute."""
        left, deadline = -1, monotonic() + _STANDSTILL_SECONDS
        while monotonic() < deadline:
            self._processes.check()
            before, left = left, invariants.unfinished(self.connection)
            if not left:
                break
            if left != before:
                deadline = monotonic() + _STANDSTILL_SECONDS
            sleep(_COUNT_SECONDS)
        self.record("settled", unfinished=left)

    def _started(self, child: Child) -> Child:
        self.record("started", process=child.name, pid=child.pid)
        return child

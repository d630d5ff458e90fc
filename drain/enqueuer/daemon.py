"""`drain run`: stands by, leads, and comes back by itself when PostgreSQL or Redis was away.

The loop holds no truth. It may be killed between any two of its statements, and the next leader goes on
from what the tables say.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import psycopg

from drain.config import Settings
from drain.database import pooler, postgres, schema
from drain.database.postgres import Connection
from drain.enqueuer import health, leader
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.chores import Chore
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.extensions import Extensions
from drain.enqueuer.gauges import Gauges
from drain.enqueuer.housekeeping import (
    DailyPartitions,
    ExpiredKeys,
    PartitionTruncator,
    PastQueues,
    ReturnedJobs,
)
from drain.enqueuer.retention import Retention
from drain.enqueuer.take_over import take_over
from drain.enqueuer.term import Term
from drain.enqueuer.thin_queues import ThinQueues
from drain.enqueuer.ticker import Ticker
from drain.errors import DrainError, UnavailableError
from drain.service import http, systemd
from drain.service.hysteresis import HealthOptions
from drain.tables import leader_progress
from drain.tables.leader_progress import Progress
from drain.wire import Producer, Traces

# Pause between two attempts of a standby to lead: it leads well within two seconds of the leader's death.
_STANDBY_SECONDS = 0.5
# Upper bound of the pause after an outage was met.
_LONGEST_BACKOFF_SECONDS = 5.0
# Timeouts for a statement of the leader, and for its wait for a lock.
_STATEMENT_SECONDS = 30
_LOCK_SECONDS = 2
# Timeout for an idle session: a leader that is stopped or hangs loses its session, and so the lock, after this long
# without a statement. A living one pauses for a second, or for as long as Redis may take to answer.
_IDLE_SECONDS = 15
# Upper bound of an orderly stop. It is not worth waiting for longer: all jobs are safe where they are.
_STOP_SECONDS = 4.5


class Daemon:
    """One process that drains, or stands by for the one that does.

    Args:
        settings: Of both stores, and of the drain.
        take_over: UUID of an installation that is gone: the namespace and queues that it fed in Redis become free.
        keep_days: Days of finished jobs before today that stay when older ones are dropped; 0 drops none.
        trace: Note when jobs pass.
        health_options: When its health is reported, and to whom.

    Attributes:
        refused: Number of jobs that Redis refused in `run_once`, since their queue is another database's or no list.
    """

    # One thing: the life of the process: stand by, lead, wait out an outage; a term as leader has a class of its own.

    def __init__(
        self,
        settings: Settings,
        *,
        take_over: str | None = None,
        keep_days: int = 0,
        trace: bool = False,
        health_options: HealthOptions | None = None,
    ) -> None:
        self.settings = settings
        self.refused = 0
        self.redis = Producer(settings.required_redis_url, settings.namespace)
        self._keep_days = keep_days
        self._traces = Traces(settings.required_redis_url, settings.namespace) if trace else None
        self._take_over = take_over
        self._stop = threading.Event()
        self._health = health.Health(health_options)
        self._extensions = Extensions(settings)
        self._gauges = Gauges(self.redis, self._extensions)
        self._batch_size = AdaptiveBatchSize(settings.batch_size)

    def stop(self) -> None:
        """Make `run` return after the batch that is being moved; may be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Drain until `stop`. Outages are waited out; each is one line when it begins and one when it ends.

        Raises:
            SchemaError: The database has no schema, or one of another version.
            ConfigError: A URL cannot be read, or leads to a pooler that shares sessions; or another database feeds
                the namespace (OwnedByAnotherError).
        """
        failures = 0
        with self._health.watched():
            while not self._stop.is_set():
                try:
                    with self._connected() as connection:
                        self._stand_by_and_lead(connection)
                except UnavailableError as error:
                    failures = 1 if self._health.is_up else failures + 1
                    self._health.down(error)
                    self._health.alive()
                    self._stop.wait(_backoff(failures))
        systemd.notify("STOPPING=1")
        self.redis.close()

    def run_once(self) -> int:
        """Drain what is due, redeliver what is overdue, and return how many jobs went to Redis.

        Raises:
            DrainError: Another enqueuer leads; or as for `run`, but an outage is not waited out.
        """
        with self._connected() as connection:
            self._claim_namespace(connection)
            state = leader.try_to_lead(connection)
            if state is None:
                raise DrainError("another enqueuer is draining this database; that one moves what is due")
            # Without a bound: nobody would push the rest once this process has ended.
            with self._enqueuer(connection, state, depth=0) as enqueuer:
                sent = self._term(enqueuer).do_all()
                self.refused = enqueuer.refused
                return sent

    def signals(self) -> AbstractContextManager[None]:
        """Let SIGTERM and SIGINT stop the daemon while the `with` block runs, within five seconds."""
        return _signals(self.stop)

    def answers(self) -> http.Answers:
        """Answers of `/healthz` and `/readyz`, and of the extensions."""
        return replace(self._health.answers(), more=self._extensions.answers)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Connect, with outages as UnavailableError; break the connection off when the loop is silent for too long."""
        with (
            postgres.reachable(self.settings.database_url),
            self._connect() as connection,
            self._health.guarded(connection),
        ):
            yield connection

    def _connect(self) -> Connection:
        connection = postgres.connect(self.settings.database_url, leader.APPLICATION_NAME)
        with postgres.time_limit(connection, health.STALLED_SECONDS):
            pooler.require_own_session(connection, self.settings.database_url)
            postgres.limit_session(
                connection,
                statement_seconds=_STATEMENT_SECONDS,
                lock_seconds=_LOCK_SECONDS,
                idle_seconds=_IDLE_SECONDS,
            )
            schema.check_once(connection)
        return connection

    def _stand_by_and_lead(self, connection: Connection) -> None:
        try:
            self._claim_namespace(connection)
        except psycopg.errors.UndefinedTable:
            # The table was there when this process looked first: the database has been created again since.
            schema.check(connection)
            raise
        state = leader.try_to_lead(connection)
        if state is None:
            self._health.up("standing by")
        while state is None and not self._stop.wait(_STANDBY_SECONDS):
            self._health.alive()
            state = leader.try_to_lead(connection)
        if state is not None:
            with self._enqueuer(connection, state, self.settings.depth) as enqueuer:
                self._term(enqueuer).run()

    def _claim_namespace(self, connection: Connection) -> None:
        """Refuse a namespace that another database feeds, before anything is moved."""
        self.redis.identify(*leader_progress.identity(connection))
        if self._take_over is not None:
            take_over(connection, self.redis, self._take_over, self._health.alive)
            self._take_over = None
        self.redis.remembers()

    def _enqueuer(self, connection: Connection, state: Progress, depth: int | None) -> Enqueuer:
        return Enqueuer(
            connection,
            self.redis,
            state,
            forward_queues=self.settings.forward_queues,
            adaptive_batch_size=self._batch_size,
            depth=depth,
            alive=self._health.alive,
            traces=self._traces,
            thin_queues=ThinQueues(self.redis, self.settings.thin_queues, self.settings.whole_queues),
        )

    def _term(self, enqueuer: Enqueuer) -> Term:
        return Term(
            enqueuer,
            _chores(enqueuer, self._keep_days),
            gauges=self._gauges,
            health=self._health,
            stop=self._stop,
            poll_seconds=self.settings.poll_seconds,
        )


def _chores(enqueuer: Enqueuer, keep_days: int) -> list[Chore]:
    connection = enqueuer.connection
    chores: list[Chore] = [
        Ticker(connection),
        ReturnedJobs(connection),
        PartitionTruncator(connection),
        DailyPartitions(connection),
        ExpiredKeys(connection),
        PastQueues(enqueuer),
    ]
    return [*chores, Retention(connection, keep_days)] if keep_days else chores


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    def stop_soon(_signal: int, _frame: object) -> None:
        stop()
        overdue = threading.Timer(_STOP_SECONDS, os._exit, (0,))
        overdue.daemon = True
        overdue.start()

    before = {number: signal.signal(number, stop_soon) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _backoff(failures: int) -> float:
    """Seconds to wait after this number of failures in a row: at most five, with a random part for each process."""
    return random.uniform(0.1, min(_LONGEST_BACKOFF_SECONDS, 0.2 * 2.0 ** min(failures, 10)))  # noqa: S311

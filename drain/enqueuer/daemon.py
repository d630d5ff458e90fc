"""Process of `drain run`, which may be killed anywhere."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

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
    PastEdges,
    PastEvents,
    PastFlows,
    PastQueues,
    PastSteps,
    PastWaits,
    ReturnedJobs,
)
from drain.enqueuer.objectives import FlowObjectives
from drain.enqueuer.retention import Retention
from drain.enqueuer.term import Term
from drain.enqueuer.thin_queues import ThinQueues
from drain.enqueuer.ticker import Ticker
from drain.errors import ConfigError, DrainError, UnavailableError
from drain.service import http, systemd
from drain.service.hysteresis import HealthOptions
from drain.tables import leader_progress
from drain.tables.leader_progress import Progress
from drain.wire import Producer, Traces

log = logging.getLogger(__name__)


# A standby leads within 2 s of the leader's death.
_STANDBY_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 5.0
_STATEMENT_SECONDS = 30
_LOCK_SECONDS = 2
# A stopped or hanging leader loses its session, and so the lock, after this long without a statement. A healthy one
# pauses for a second, or as long as Redis may take to answer.
_IDLE_SECONDS = 15
# Limit of an orderly stop; no job depends on it.
_STOP_SECONDS = 4.5


class Daemon:
    """Stands by, leads, and waits out outages of both stores.

    Args:
        take_over: UUID of an abandoned installation.
        keep_days: Past days of finished jobs to keep; 0 drops none.
        queue_file: Declares the flows to measure.

    Attributes:
        refused: Jobs refused in `run_once`: another database feeds the queue, or its key is not a list.
    """

    # One thing: the life of the process; `Term` leads.

    def __init__(
        self,
        settings: Settings,
        *,
        take_over: str | None = None,
        keep_days: int = 0,
        trace: bool = False,
        health_options: HealthOptions | None = None,
        queue_file: Path | None = None,
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
        self._flow_objectives = FlowObjectives(queue_file)
        self._gauges = Gauges(self.redis, self._extensions, self._flow_objectives)
        self._batch_size = AdaptiveBatchSize(settings.batch_size)

    def stop(self) -> None:
        """End `run` after the current batch; safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Drain until `stop`; log when outages begin and end.

        Raises:
            SchemaError: The schema is missing or of another version.
            ConfigError: A URL is invalid, or leads to a pooler that shares sessions; or another database
                owns the namespace.
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
        """Do everything due; return how many jobs went to Redis.

        Raises:
            DrainError: Another enqueuer leads; or as for `run`, including outages.
        """
        with self._connected() as connection:
            self._claim_namespace(connection)
            state = leader.try_to_lead(connection, is_command=True)
            if state is None:
                raise DrainError("another enqueuer is draining this database and moves all due jobs")
            # No depth limit: no process would push the rest later.
            with self._enqueuer(connection, state, depth=0) as enqueuer:
                sent = self._term(enqueuer).do_all()
                self.refused = enqueuer.refused
                return sent

    def signals(self) -> AbstractContextManager[None]:
        """Stop within five seconds of SIGTERM or SIGINT."""
        return _signals(self.stop)

    def answers(self) -> http.Answers:
        """Answers of `/healthz`, `/readyz` and extensions."""
        return replace(self._health.answers(), more=self._extensions.answers)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Map outages to UnavailableError, and break a silent loop's connection."""
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
            # It existed at the start: the database was recreated.
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
        """Refuse another database's namespace before anything moves."""
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
            flow_objectives=self._flow_objectives,
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
        PastSteps(connection),
        PastEdges(connection),
        PastFlows(connection),
        PastWaits(connection),
        PastEvents(connection),
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
    return random.uniform(0.1, min(_LONGEST_BACKOFF_SECONDS, 0.2 * 2.0 ** min(failures, 10)))  # noqa: S311


def take_over(connection: Connection, redis: Producer, installation: str, alive: Callable[[], None]) -> None:
    """Remove the job ids of an abandoned installation (a UUID) from Redis, and free its names.

    Args:
        redis: Identified as this database.

    Raises:
        ConfigError: The installation is this database.
    """
    if installation == redis.installation:
        raise ConfigError(
            "--take-over names this database's own installation; give that of the abandoned one"
        )
    removed = 0
    for number in redis.remove_ids_of(installation):
        removed += number
        # Neither the watchdog nor the idle timeout may end it.
        alive()
        connection.execute("SELECT 1")
    taken = redis.take_over(installation)
    if taken:
        log.info(
            "taken over from installation %s: %d namespace and queue names; removed %d job ids",
            installation,
            taken,
            removed,
            extra={"event": "taken_over"},
        )
    else:
        log.warning("installation %s feeds nothing in Redis", installation, extra={"event": "taken_over"})

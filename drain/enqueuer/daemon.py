"""`drain run`: stands by, leads, sleeps, and comes back by itself when PostgreSQL or Redis was away.

The loop holds no truth. It may be killed between any two of its statements, and the next leader goes on
from what the tables say.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic

import psycopg

from drain import metrics
from drain.config import Settings
from drain.database import pooler, postgres, schema
from drain.database.postgres import Connection
from drain.enqueuer import leader
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.pacer import Pace
from drain.enqueuer.partitions import DailyPartitions
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.retention import Retention
from drain.enqueuer.truncation import PartitionTruncator
from drain.enqueuer.waits import Waits
from drain.errors import ConfigError, DrainError, UnavailableError
from drain.service import http, systemd
from drain.tables import counts, waiting
from drain.tables import leader_progress as notes
from drain.tables.leader_progress import Progress
from drain.wire import Producer

log = logging.getLogger(__name__)

# A standby asks this often, so it leads well within two seconds of the leader's death.
_STANDBY_SECONDS = 0.5
_REDELIVERY_SECONDS = 1.0
_OBSERVE_SECONDS = 5.0
_LONGEST_BACKOFF_SECONDS = 5.0
_FIRST_NAP_SECONDS = 0.001
_LONGEST_NAP_SECONDS = 0.05
_STATEMENT_SECONDS = 30
_LOCK_SECONDS = 2
# A leader that is stopped or hangs loses its session, and so the lock, after this long without a statement.
# A living one pauses for a second, or for as long as Redis may take to answer.
_IDLE_SECONDS = 15
# Stopping later than this is not worth waiting for: everything in hand is safe where it is.
_STOP_SECONDS = 4.5
# Longer than any statement may take: the server, or what stands between, has stopped answering.
_STALLED_SECONDS = 35.0
_UNHEALTHY_SECONDS = 90.0
_COUNT_UP_TO = 100_000

Chore = PartitionTruncator | DailyPartitions | Retention


class Daemon:
    """One process that drains, or stands by for the one that does.

    Args:
        settings: Where, and how.
        take_over: UUID of an installation that is gone: what it fed in Redis is free from now on.
        keep_days: Days of finished jobs before today that stay when older ones are dropped; None drops none.

    Attributes:
        refused: How many jobs Redis refused in `run_once`: another database feeds their queue, or its key is no list.
    """

    def __init__(
        self, settings: Settings, *, take_over: str | None = None, keep_days: int | None = None
    ) -> None:
        self.settings = settings
        self._keep_days = keep_days
        self._take_over = take_over
        self.refused = 0
        self.redis = Producer(settings.required_redis_url, settings.namespace)
        self._stop = threading.Event()
        self._problem: str | None = "starting"
        self._ticked = monotonic()
        self._nap = _FIRST_NAP_SECONDS
        self._redeliver_at = 0.0
        self._limit = AdaptiveBatchSize(settings.batch_size)
        self._observations = Pace(_OBSERVE_SECONDS)
        self._queues: set[str] = set()
        self._stale: int | None = None

    def stop(self) -> None:
        """Make `run` return after the batch in hand; may be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Drain until `stop`. Outages are waited out; each is one line when it begins and one when it ends.

        Raises:
            SchemaError: The database has no schema, or one of another version.
            ConfigError: A URL cannot be read, or leads to a pooler that shares sessions; or another database feeds
                the namespace (OwnedByAnotherError).
        """
        failures = 0
        while not self._stop.is_set():
            try:
                with postgres.reachable(self.settings.database_url):
                    self._stand_by_and_lead()
            except UnavailableError as error:
                failures = 1 if self._problem is None else failures + 1
                self._down(error)
                self._tick()
                self._stop.wait(_backoff(failures))
        systemd.notify("STOPPING=1")
        self.redis.close()

    def run_once(self) -> int:
        """Drain what is due, redeliver what is overdue, and return how many jobs went to Redis.

        Raises:
            DrainError: Another enqueuer leads; or as for `run`, but an outage is not waited out.
        """
        url = self.settings.database_url
        with postgres.reachable(url), self._connect() as connection, self._guarded(connection):
            self._claim_namespace(connection)
            state = leader.try_to_lead(connection)
            if state is None:
                raise DrainError("another enqueuer is draining this database; what is due is in its hands")
            with self._enqueuer(connection, state) as enqueuer:
                redelivery = Redelivery(enqueuer, alive=self._tick)
                again = redelivery.recover()
                enqueuer.drain(keep_on=self._is_alive)
                again += redelivery.run_once()
                for chore in self._chores(connection):
                    while chore.run_once():
                        self._tick()
                self.refused = enqueuer.refused
                return again + enqueuer.delivered

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT stop the daemon, within five seconds."""

        def stop(_signal: int, _frame: object) -> None:
            self.stop()
            overdue = threading.Timer(_STOP_SECONDS, os._exit, (0,))
            overdue.daemon = True
            overdue.start()

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def answers(self) -> http.Answers:
        """What `/healthz` and `/readyz` report."""

        def unhealthy() -> str | None:
            silent = monotonic() - self._ticked
            return f"the loop has been silent for {silent:.0f} s" if silent > _UNHEALTHY_SECONDS else None

        return http.Answers(unhealthy=unhealthy, unready=lambda: self._problem)

    def _connect(self) -> Connection:
        connection = postgres.connect(self.settings.database_url, leader.APPLICATION_NAME)
        with postgres.time_limit(connection, _STALLED_SECONDS):
            pooler.require_own_session(connection, self.settings.database_url)
            postgres.limit_session(
                connection,
                statement_seconds=_STATEMENT_SECONDS,
                lock_seconds=_LOCK_SECONDS,
                idle_seconds=_IDLE_SECONDS,
            )
            schema.check_once(connection)
        return connection

    def _enqueuer(self, connection: Connection, state: Progress) -> Enqueuer:
        return Enqueuer(
            connection,
            self.redis,
            state,
            forward_queues=self.settings.forward_queues,
            limit=self._limit,
            alive=self._tick,
        )

    def _stand_by_and_lead(self) -> None:
        with self._connect() as connection, self._guarded(connection):
            try:
                self._claim_namespace(connection)
            except psycopg.errors.UndefinedTable:
                # It was there when this process looked first: the database has been made anew since.
                schema.check(connection)
                raise
            state = leader.try_to_lead(connection)
            if state is None:
                self._up("standing by")
            while state is None and not self._stop.wait(_STANDBY_SECONDS):
                self._tick()
                state = leader.try_to_lead(connection)
            if state is not None:
                self._lead(connection, state)

    def _claim_namespace(self, connection: Connection) -> None:
        """Refuse a namespace that another database feeds, before anything is moved."""
        self.redis.identify(*notes.identity(connection))
        if self._take_over is not None:
            self._take_over_from(connection, self._take_over)
            self._take_over = None
        self.redis.remembers()

    def _take_over_from(self, connection: Connection, installation: str) -> None:
        if installation == self.redis.installation:
            raise ConfigError(
                "--take-over names this very database; it is for the installation of one that is gone"
            )
        removed = 0
        for number in self.redis.remove_ids_of(installation):
            removed += number
            # Neither our guard nor the server is to take a long list for a standstill.
            self._tick()
            connection.execute("SELECT 1")
        taken = self.redis.take_over(installation)
        if taken:
            log.info(
                "taken over from installation %s: %d names of its namespace and queues; removed %d ids of its jobs",
                installation,
                taken,
                removed,
                extra={"event": "taken_over"},
            )
        else:
            log.warning(
                "nothing in Redis is fed by installation %s", installation, extra={"event": "taken_over"}
            )

    @contextmanager
    def _guarded(self, connection: Connection) -> Iterator[None]:
        """Break the connection off when the loop has been silent for too long."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(min(1.0, _STALLED_SECONDS / 4)):
                if monotonic() - self._ticked > _STALLED_SECONDS:
                    postgres.break_off(connection)
                    return

        self._tick()
        threading.Thread(target=watch, name="guard", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _lead(self, connection: Connection, state: Progress) -> None:
        metrics.LEADER.set(1)
        try:
            with self._enqueuer(connection, state) as enqueuer:
                redelivery = Redelivery(enqueuer, alive=self._tick)
                redelivery.recover()
                # Only now: a Redis that answers may still refuse to take jobs, and until a batch has got through,
                # the waits between two terms grow.
                enqueuer.drain(keep_on=lambda: False)
                self._up("leading")
                chores = self._chores(connection)
                waits = Waits(enqueuer, redelivery)
                log.info("leading from now on", extra={"event": "leading"})
                while not self._stop.is_set():
                    self._round(enqueuer, redelivery, chores, waits)
        finally:
            metrics.LEADER.set(0)
            for gauge in (metrics.FAILING, metrics.WAIT, metrics.WORKERS):
                gauge.clear()

    def _chores(self, connection: Connection) -> list[Chore]:
        chores: list[Chore] = [PartitionTruncator(connection), DailyPartitions(connection)]
        return chores + ([Retention(connection, self._keep_days)] if self._keep_days else [])

    def _round(
        self, enqueuer: Enqueuer, redelivery: Redelivery, chores: Iterable[Chore], waits: Waits
    ) -> None:
        """Drain until nothing is due, or until something else is; then that, or sleep."""
        self._tick()
        drained = enqueuer.drain(keep_on=self._nothing_else_is_due)
        if monotonic() >= self._redeliver_at:
            drained += redelivery.run_once()
            for chore in chores:
                chore.run_once()
            self._redeliver_at = monotonic() + _REDELIVERY_SECONDS
        if self._observations.is_due():
            began = monotonic()
            self._observe(enqueuer, waits)
            self._observations.took(monotonic() - began)
        if drained:
            self._nap = _FIRST_NAP_SECONDS
        else:
            self._sleep(enqueuer)

    def _nothing_else_is_due(self) -> bool:
        return not self._stop.is_set() and monotonic() < self._redeliver_at

    def _sleep(self, enqueuer: Enqueuer) -> None:
        with leader.asleep(enqueuer.connection) as everybody_will_notify:
            if everybody_will_notify:
                # Once more: what was committed between the last look and the lock has not notified.
                if not enqueuer.run_once():
                    leader.wait_for_notify(enqueuer.connection, self._sleep_seconds(enqueuer.connection))
                self._nap = _FIRST_NAP_SECONDS
                return
        # Somebody has staged and not committed yet, and others who commit meanwhile may not notify. The
        # longer it takes, the longer the naps: a transaction of a millisecond is found after another one,
        # and one of an hour costs twenty small looks a second.
        self._stop.wait(self._nap)
        self._nap = min(2 * self._nap, _LONGEST_NAP_SECONDS)

    def _sleep_seconds(self, connection: Connection) -> float:
        next_scheduled = waiting.seconds_to_next_scheduled(connection)
        longest = min(self.settings.poll_seconds, self._seconds_to_redelivery())
        return longest if next_scheduled is None else max(0.0, min(longest, next_scheduled))

    def _seconds_to_redelivery(self) -> float:
        return max(0.0, self._redeliver_at - monotonic())

    def _observe(self, enqueuer: Enqueuer, waits: Waits) -> None:
        connection = enqueuer.connection
        lags = [
            waiting.oldest_due_seconds(connection, bound.key, bound.range.up_to) for bound in enqueuer.bounds
        ]
        metrics.LAG.set(max(lags))
        if not enqueuer.awaits_bulk:
            metrics.STAGED.set(counts.count_staged(connection, _COUNT_UP_TO))
        metrics.KEPT.set(counts.count_dead(connection, _COUNT_UP_TO))
        self._count_stale(counts.count_stale(connection))
        seconds = waits.look()
        self._queues |= {
            queue for queue in {*enqueuer.queues, *seconds} if metrics.queue_label(queue) == queue
        }
        for queue in self._queues:
            metrics.DEPTH.labels(queue).set(self.redis.depth(queue))
        for queue, workers in self.redis.workers(list(self._queues)).items():
            metrics.WORKERS.labels(queue).set(workers)
        if not waits.refused:
            for label, longest in waits.by_label(seconds, self._queues).items():
                metrics.WAIT.labels(label).set(longest)

    def _count_stale(self, count: int) -> None:
        # Fewer than before: somebody has emptied the table.
        metrics.STALE.inc(max(0, count - (count if self._stale is None else self._stale)))
        self._stale = count

    def _tick(self) -> None:
        self._ticked = monotonic()
        systemd.notify("WATCHDOG=1")

    def _is_alive(self) -> bool:
        self._tick()
        return True

    def _up(self, status: str) -> None:
        if self._problem is not None:
            log.info("PostgreSQL and Redis answer, %s", status, extra={"event": "up"})
        self._problem = None
        systemd.notify("READY=1", f"STATUS={status}")

    def _down(self, error: Exception) -> None:
        store = "redis" if str(error).startswith("Redis") else "postgres"
        metrics.FAILURES.labels(store).inc()
        problem = str(error).partition("\n")[0]
        if self._problem is None or self._problem == "starting":
            log.warning("%s; nothing is lost, trying again", problem, extra={"event": "down"})
        self._problem = problem
        systemd.notify(f"STATUS=waiting: {problem}")


def _backoff(failures: int) -> float:
    """Seconds to wait after this many failures in a row: up to five, never the same for two processes."""
    return random.uniform(0.1, min(_LONGEST_BACKOFF_SECONDS, 0.2 * 2.0 ** min(failures, 10)))  # noqa: S311

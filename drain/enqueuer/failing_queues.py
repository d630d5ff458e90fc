"""Failing queues: while all attempts fail, retries go one at a time until a job finishes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from drain import metrics
from drain.database.postgres import Connection
from drain.tables import waiting
from drain.tables.redeliveries import Redelivered
from drain.tables.waiting import Retrying

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Trial:
    """Trial of a failing queue, by database time; `job_id` is the retry under way."""

    since: datetime
    job_id: int | None = None


@dataclass(frozen=True, slots=True)
class DueRetries:
    """Retries that may be pushed: one on trial, else all."""

    queue: str
    trial: Trial | None

    @property
    def limit(self) -> int | None:
        """Maximum, if any."""
        return None if self.trial is None else 1

    def put_on_trial(self, jobs: Sequence[Redelivered]) -> None:
        """Note the first retry as under way, if on trial."""
        if self.trial is not None and jobs:
            self.trial.job_id = jobs[0].id


class FailingQueues:
    """Watches queues with waiting retries."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._trials: dict[str, Trial] = {}
        # Last queue in turn.
        self._last_queue = ""
        # Another leader's findings are outdated.
        metrics.FAILING.clear()

    @property
    def names(self) -> Collection[str]:
        """Failing queues."""
        return self._trials.keys()

    def due_retries(self) -> Iterator[DueRetries]:
        """Judge queues with waiting retries, and yield in turn those that may push.

        Push before the next one; a later call continues behind the last.
        """
        retrying = waiting.retrying_queues(self._connection)
        judged = [(queue, self._judge(queue)) for queue in retrying]
        for name in self._trials.keys() - {queue.queue for queue in retrying}:
            if not self._is_under_way(self._trials[name]):
                self._end_trial(name)
        due = (DueRetries(queue.queue, trial) for queue, trial in judged if queue.due)
        for retries in sorted(due, key=lambda each: (each.queue <= self._last_queue, each.queue)):
            if retries.trial is None or not self._is_under_way(retries.trial):
                self._last_queue = retries.queue
                yield retries

    def lost_worker(self, job_ids: set[int]) -> None:
        """End these jobs' trials: a job that kills its worker must not block its queue."""
        for trial in self._trials.values():
            trial.job_id = None if trial.job_id in job_ids else trial.job_id

    def _judge(self, queue: Retrying) -> Trial | None:
        trial = self._trials.get(queue.queue)
        if trial is None and queue.failing:
            trial = self._trials[queue.queue] = Trial(queue.now)
            metrics.FAILING.labels(queue.queue).set(1)
            log.warning(
                "queue %s keeps failing; its retries are pushed one at a time",
                queue.queue,
                extra={"event": "queue_failing", "queue": queue.queue},
            )
        elif trial is not None and queue.last_finish is not None and queue.last_finish > trial.since:
            self._end_trial(queue.queue)
            trial = None
        return trial

    def _end_trial(self, queue: str) -> None:
        del self._trials[queue]
        metrics.FAILING.labels(queue).set(0)
        log.info(
            "queue %s no longer fails; its retries are pushed as they come due",
            queue,
            extra={"event": "queue_recovered", "queue": queue},
        )

    def _is_under_way(self, trial: Trial) -> bool:
        job_id = trial.job_id
        return job_id is not None and waiting.is_under_way(self._connection, job_id)

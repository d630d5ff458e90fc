"""The leader's part in a test, without Redis."""

from __future__ import annotations

from typing import Any, cast

from drain.admission import uniqueness
from drain.admission.admission import Admission
from drain.contrib.testing.nested import LeaderConnection
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.batches import Batches
from drain.enqueuer.deliveries import Deliveries
from drain.enqueuer.due_rows import DueRows
from drain.enqueuer.matcher import Matcher
from drain.enqueuer.mover import Mover
from drain.enqueuer.unblocker import Unblocker
from drain.tables import leader_progress, pauses, redeliveries, waiting
from drain.tables.pauses import Pauses
from drain.wire import Producer

_MOST = 2500


class NoRedis:
    """Producer with unbounded lists that pushes nothing."""

    namespace = "drain.contrib.testing"


def deliver(connection: LeaderConnection) -> None:
    """Do a leader's work once: rules, pauses, unique keys, predecessors, waits, expiry, due rows, due retries."""
    redis = cast(Producer, NoRedis())
    call_back(connection)
    deliveries = Deliveries(connection, leader_progress.progress(connection))
    admission = Admission(connection, redis, depth=0, forward_queues=frozenset())
    size = AdaptiveBatchSize(_MOST)
    due_rows = DueRows(connection, size, _alive, admission)
    mover = Mover(connection, redis, deliveries, forward_queues=frozenset(), alive=_alive)
    Unblocker(connection).run_all()
    Matcher(connection).run_all()
    batches = Batches(connection, due_rows, mover, deliveries, size=size, alive=_alive)
    while True:
        admission.look_when_due()
        batch = batches.run_once()
        if batch.moved:
            admission.moved(batch.moved)
        if not batch.size and not admission.may_find_more:
            break
    _redeliver(connection, admission, deliveries)
    uniqueness.settle_returned(connection)


def call_back(connection: LeaderConnection) -> None:
    """Return delivered jobs that a pause affects."""
    paused = Pauses(pauses.read(connection))
    if paused:
        redeliveries.call_back(connection, _MOST, paused.queues)


def _redeliver(connection: LeaderConnection, admission: Admission, deliveries: Deliveries) -> None:
    for retrying in waiting.retrying_queues(connection):
        if not retrying.due:
            continue
        last, chosen = deliveries.last_delivery, admission.redeliverable(retrying.queue, _MOST)
        jobs: list[Any]
        if isinstance(chosen, int):
            jobs = redeliveries.redeliver_retries(
                connection, last, chosen, queue=retrying.queue, but_paused=bool(admission.paused)
            )
        else:
            jobs = redeliveries.redeliver_chosen(
                connection, last, chosen, queue=retrying.queue, but_paused=bool(admission.paused)
            )
            admission.redelivered(retrying.queue, {job.id: job.claims for job in jobs})
        if jobs:
            deliveries.record(jobs[-1].delivery)
            deliveries.committed(jobs[-1].delivery)


def _alive() -> None:
    """Report nothing: no guard watches a test."""

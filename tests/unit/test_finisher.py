"""What has ended is written down together with its like, as long as there is more to run."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from drain.database.wakeup import Wakeup
from drain.errors import UnavailableError
from drain.tables import finishes
from drain.tables.claims import Claim
from drain.wire import Consumer, PoppedId
from drain.workers.execution import recorder
from drain.workers.execution.outcome import FINISHED, AlreadyFinished, Finished, Interrupted
from drain.workers.handover.journal import Journal, Progress
from drain.workers.lease.database import Database
from drain.workers.lease.heartbeat import Heartbeat
from drain.workers.options import WorkOptions
from drain.workers.process import finisher
from drain.workers.process.finisher import Finisher
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import ClaimedJob
from drain.workers.process.outcome_batch import OutcomeBatch
from drain.workers.process.shutdown import Shutdown
from drain.workers.process.stale_deliveries import OvertakenDeliveries
from drain.workers.stores import Stores as StateOfStores
from tests.helpers import wait_until


class CountedWakeup(Wakeup):
    """Tells how often it has been waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, seconds: float | None = None) -> bool:
        self.waits += 1
        return super().wait(seconds)


class Stores:
    """Postgres and Redis that take whatever they are given."""

    def __init__(self) -> None:
        self.finished: list[list[int]] = []
        self.notified = 0
        self.may_notify = True
        self.durable: list[int] = []
        self.cleared: list[str] = []
        self.unknown: list[PoppedId] = []
        self.unavailable: UnavailableError | None = None
        self.stores = StateOfStores()

    def ask(self, statement: Callable[[Any], object]) -> object:
        return statement(None)

    def send_hint(self, _statement: Callable[[Any], object]) -> bool:
        self.notified += 1
        return self.may_notify

    def clear(self, ids: Sequence[str]) -> list[str]:
        # Nobody is told of a job whose commit a crash may still undo.
        assert {f"rq-{job_id}" for job_id in self.durable} >= set(ids) - {"rq-1", "rq-2", "rq-3", "shop-2-06"}
        self.cleared += ids
        return []

    def clear_unless_awaited(self, ids: Sequence[str]) -> None:
        self.cleared += [f"unfinished {rq_id}" for rq_id in ids]

    def add(self, deliveries: Sequence[PoppedId]) -> None:
        self.unknown += deliveries

    def close(self) -> None:
        pass

    def undone_by_crash(self, _connection: object, claims: Sequence[Claim]) -> set[int]:
        if self.unavailable is not None:
            raise self.unavailable
        self.durable += [claim.id for claim in claims]
        return set()

    def finish_many(self, _connection: object, claims: Sequence[Claim], _results: Any = None) -> set[int]:
        self.finished.append([claim.id for claim in claims])
        return {claim.id for claim in claims}


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    stores = Stores()
    monkeypatch.setattr(finishes, "finish_many", stores.finish_many)
    monkeypatch.setattr(finishes, "undone_by_crash", stores.undone_by_crash)
    # Only the wakeup ends the wait for further outcomes.
    monkeypatch.setattr(finisher, "_BATCHING_SECONDS", 3600)
    return stores


@contextmanager
def finishing(stores: Stores) -> Iterator[Inbox]:
    journal = Journal()
    inbox = Inbox(WorkOptions(queues=["default"]), journal, Shutdown(30, journal))
    inbox.batch_filled = CountedWakeup()
    overtaken = cast(OvertakenDeliveries, stores)
    ours = Finisher(inbox, cast(Consumer, stores), cast(Database, stores), overtaken=overtaken)
    thread = threading.Thread(target=ours.run, daemon=True)
    thread.start()
    try:
        yield inbox
    finally:
        ours.stop()
        thread.join(10)
    assert not thread.is_alive()


def claimed(inbox: Inbox, *ids: int) -> list[ClaimedJob]:
    now = datetime.now(UTC)
    heartbeat = Heartbeat("", inbox.attempts)
    for job_id in ids:
        claim = Claim(
            *(job_id, "tests.act", "[]", "{}", "default", None, None, 1, 0, 60, 30.0, 1, now, False, False),
            *(None, "w", UUID(int=0)),
        )
        slot = inbox.journal.add(claim, 0)
        inbox.add_claimed(
            ClaimedJob(claim, 0.0, heartbeat, "", rq_id=f"rq-{job_id}", slot=slot, waits_since=0.0)
        )
    inbox.accept([inbox.claimed[job_id] for job_id in ids], [])
    return [inbox.claimed[job_id] for job_id in ids]


def end_next(inbox: Inbox) -> None:
    inbox.add_outcome(cast(ClaimedJob, inbox.waiting.popleft()), FINISHED, 0.002)


def test_the_first_ended_job_waits_to_be_recorded_with_others(stores: Stores) -> None:
    with finishing(stores) as inbox:
        claimed(inbox, 1, 2, 3)
        end_next(inbox)
        wait_until(lambda: cast(CountedWakeup, inbox.batch_filled).waits)
        assert stores.finished == []
        end_next(inbox)
        end_next(inbox)
        wait_until(lambda: not inbox.claimed)
    assert stores.finished == [[1, 2, 3]]


def test_an_outcome_is_recorded_at_once_if_jobs_may_wait_for_its_place(stores: Stores) -> None:
    with finishing(stores) as inbox:
        limited, *_ = claimed(inbox, 1, 2, 3)
        limited.rq_id = "shop-1-005"
        inbox.add_outcome(cast(ClaimedJob, inbox.waiting.popleft()), FINISHED, 0.5)
        wait_until(lambda: stores.finished == [[1]])
        for job in (inbox.waiting.popleft(), inbox.waiting.popleft()):
            inbox.add_outcome(cast(ClaimedJob, job), FINISHED, 0.05)
        wait_until(lambda: not inbox.claimed)
    assert stores.notified == 1


def test_the_end_of_a_short_job_is_left_to_polls(stores: Stores) -> None:
    with finishing(stores) as inbox:
        (short,) = claimed(inbox, 1)
        short.rq_id = "shop-1-005"
        inbox.add_outcome(cast(ClaimedJob, inbox.waiting.popleft()), FINISHED, 0.009)
        wait_until(lambda: not inbox.claimed)
    assert stores.notified == 0


def test_a_failed_notification_keeps_no_other_queue_waiting(stores: Stores) -> None:
    stores.may_notify = False
    with finishing(stores) as inbox:
        for number in range(1, 4):
            (limited,) = claimed(inbox, number)
            limited.rq_id = f"shop-{number}-005"
            limited.claim = limited.claim._replace(queue=f"q{number}")
            inbox.add_outcome(cast(ClaimedJob, inbox.waiting.popleft()), FINISHED, 0.5)
            wait_until(lambda: not inbox.claimed)
    assert stores.notified == 1


def test_a_thin_delivery_is_cleared_only_if_rqs_tools_were_shown_its_job(stores: Stores) -> None:
    with finishing(stores) as inbox:
        short, slow, whole = claimed(inbox, 1, 2, 3)
        short.rq_id, slow.rq_id = "shop-1-05", "shop-2-06"
        assert not short.has_hash
        for seconds in (0.5, 1.5, 0.5):
            inbox.add_outcome(cast(ClaimedJob, inbox.waiting.popleft()), FINISHED, seconds)
        wait_until(lambda: not inbox.claimed)
    assert stores.cleared == [slow.rq_id, whole.rq_id]


def end_committed(inbox: Inbox) -> None:
    job = cast(ClaimedJob, inbox.waiting.popleft())
    inbox.add_outcome(job, AlreadyFinished(FINISHED, is_durable=False), 0.002)


def test_an_asynchronous_commit_is_reported_only_once_durable(stores: Stores) -> None:
    with finishing(stores) as inbox:
        claimed(inbox, 4, 5)
        end_committed(inbox)
        wait_until(lambda: cast(CountedWakeup, inbox.batch_filled).waits)
        (committed, _) = inbox.journal.entries()
        assert committed.progress is Progress.COMMITTED
        assert (stores.durable, stores.cleared) == ([], [])
        end_committed(inbox)
        wait_until(lambda: not inbox.claimed)
    assert (stores.durable, stores.cleared) == ([4, 5], ["rq-4", "rq-5"])
    assert (stores.finished, inbox.journal.counts) == ([], (2, 0))


def test_a_commit_of_unknown_durability_does_not_count_as_a_finish(stores: Stores) -> None:
    stores.unavailable = UnavailableError("PostgreSQL is away")
    with finishing(stores) as inbox:
        claimed(inbox, 4)
        end_committed(inbox)
        wait_until(lambda: not inbox.claimed)
    assert stores.cleared == ["unfinished rq-4"]
    # It may be finished, and then no redelivery comes that would release its dependents.
    assert stores.unknown == [PoppedId("rq-4", "default", 4, 0)]
    assert inbox.journal.counts == (0, 0)


def test_a_finish_that_is_refused_or_lost_in_a_crash_does_not_count(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishes, "finish_many", lambda *_: {1})
    monkeypatch.setattr(finishes, "undone_by_crash", lambda *_: {4})
    journal = Journal()
    inbox = Inbox(WorkOptions(queues=["default"]), journal, Shutdown(30, journal))
    accepted, refused, lasting, undone, late = claimed(inbox, 1, 2, 3, 4, 5)
    committed = AlreadyFinished(FINISHED, is_durable=False)
    returned_late = AlreadyFinished(Finished("42"), is_durable=False)
    batch = OutcomeBatch(
        [
            *((accepted, FINISHED), (refused, FINISHED)),
            *((lasting, committed), (undone, committed), (late, returned_late)),
        ]
    )
    batch.record(cast(Database, stores))
    assert batch.finished == [accepted, lasting]
    assert [(job, type(outcome)) for job, outcome in batch.alone] == [
        (refused, Finished),
        (undone, Interrupted),
        (late, AlreadyFinished),
    ]


class StrictJournal(Journal):
    """Notes the numbers in the order in which they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, int]] = []

    def count(self, finished: int, failed: int) -> None:
        # Whichever other thread waits for the interpreter gets it here.
        time.sleep(0)
        self.written.append((finished, failed))
        super().count(finished, failed)


def test_two_threads_lose_no_count(stores: Stores) -> None:
    """The main thread counts what it has recorded itself, while the finisher's counts its batches."""
    times = 1000
    journal = StrictJournal()
    inbox = Inbox(WorkOptions(queues=["default"]), journal, Shutdown(30, journal))
    ours = Finisher(inbox, cast(Consumer, stores), cast(Database, stores))
    ended = claimed(inbox, 1, 2)

    def count_batches() -> None:
        for _ in range(times):
            ours._note_finished(ended)

    thread = threading.Thread(target=count_batches)
    thread.start()
    for _ in range(times):
        ours.note_recorded("rq-3", "default", "finished", None, has_hash=False)
        ours.note_refused()
    thread.join()
    assert (ours.finished, ours.failed) == journal.counts == (3 * times, times)
    assert journal.written == sorted(journal.written, key=sum)


def test_the_journal_marks_a_self_finished_job_as_possibly_finished() -> None:
    journal = Journal()
    inbox = Inbox(WorkOptions(queues=["default"]), journal, Shutdown(30, journal))
    claimed(inbox, 1, 2)
    inbox.add_outcome(cast(ClaimedJob, inbox.waiting.popleft()), AlreadyFinished(FINISHED), 0.002)
    end_next(inbox)
    assert [entry.progress for entry in journal.entries()] == [Progress.COMMITTED, Progress.FINISHED]


def test_the_last_ended_job_is_recorded_at_once(stores: Stores) -> None:
    with finishing(stores) as inbox:
        claimed(inbox, 1)
        end_next(inbox)
        wait_until(lambda: not inbox.claimed)
        assert cast(CountedWakeup, inbox.batch_filled).waits == 0
    assert stores.finished == [[1]]


def test_outcomes_waiting_to_be_batched_are_recorded_when_the_worker_ends(stores: Stores) -> None:
    with finishing(stores) as inbox:
        claimed(inbox, 1, 2)
        end_next(inbox)
        wait_until(lambda: cast(CountedWakeup, inbox.batch_filled).waits)
    assert stores.finished == [[1]]


def test_outcomes_that_were_added_before_the_stop_are_recorded(stores: Stores) -> None:
    journal = Journal()
    inbox = Inbox(WorkOptions(queues=["default"]), journal, Shutdown(30, journal))
    ours = Finisher(inbox, cast(Consumer, stores), cast(Database, stores))
    claimed(inbox, 1)
    end_next(inbox)
    ours.stop()
    ours.run()
    assert stores.finished == [[1]]


@pytest.mark.parametrize(("level", "logged"), [("INFO", [1]), ("DEBUG", [1, 2, 3])])
def test_only_the_first_finish_of_a_name_is_logged_unless_all_are_wanted(
    stores: Stores,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    level: str,
    logged: list[int],
) -> None:
    monkeypatch.setattr(recorder, "_logged", set())
    with caplog.at_level(level, "drain.workers"), finishing(stores) as inbox:
        for job_id in (1, 2, 3):
            claimed(inbox, job_id)
            end_next(inbox)
            wait_until(lambda: not inbox.claimed)
    lines = [record for record in caplog.records if vars(record).get("event") == "job_finished"]
    assert [vars(line)["job_id"] for line in lines] == logged
    assert lines[0].getMessage().startswith("job 1 (tests.act) of queue default finished in 2ms")
    assert lines[0].levelno == logging.INFO

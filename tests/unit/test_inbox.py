"""The inbox of a worker process tells its threads what they wait for."""

from collections.abc import Callable
from typing import cast

import pytest

from drain.workers.handover.journal import Journal
from drain.workers.options import WorkOptions
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import ClaimedJob
from drain.workers.process.shutdown import Shutdown


@pytest.fixture
def inbox() -> Inbox:
    journal = Journal()
    return Inbox(WorkOptions(queues=["default"], threads=2, concurrency=2), journal, Shutdown(30, journal))


BEGINS: list[tuple[str, Callable[[Inbox], ClaimedJob | None]]] = [
    ("waiting_async", Inbox.begin_next_async),
    ("waiting_for_threads", Inbox.begin_next_in_thread),
]


@pytest.mark.parametrize(("waiting", "begin"), BEGINS)
def test_the_fetcher_wakes_when_a_concurrent_job_begins(
    inbox: Inbox, waiting: str, begin: Callable[[Inbox], ClaimedJob | None]
) -> None:
    getattr(inbox, waiting).append(cast(ClaimedJob, object()))
    assert inbox.wanted == 0
    assert begin(inbox) is not None
    assert inbox.room_freed.wait(0)
    assert inbox.wanted == 1


@pytest.mark.parametrize(("waiting", "begin"), BEGINS)
def test_slow_jobs_are_fetched_only_once_a_slot_is_free(
    inbox: Inbox, waiting: str, begin: Callable[[Inbox], ClaimedJob | None]
) -> None:
    jobs = [cast(ClaimedJob, object()) for _ in range(2)]
    getattr(inbox, waiting).extend(jobs)
    assert begin(inbox) is jobs[0]
    assert begin(inbox) is jobs[1]
    assert inbox.wanted == 0
    inbox.room_freed.wait(0)
    (inbox.end_async if waiting == "waiting_async" else inbox.end_in_thread)(jobs[0])
    assert inbox.room_freed.wait(0)
    assert inbox.wanted == 1


def test_jobs_waiting_for_threads_are_withdrawn_too(inbox: Inbox) -> None:
    job = cast(ClaimedJob, type("Job", (), {"waits_since": 0.0})())
    inbox.waiting_for_threads.append(job)
    assert inbox.withdraw(1.0) == [job]
    assert inbox.begin_next_in_thread() is None


def test_a_process_is_recycled_even_if_two_threads_count_its_last_job() -> None:
    journal = Journal()
    shutdown = Shutdown(30, journal)
    inbox = Inbox(WorkOptions(queues=["default"], threads=2, max_jobs=5), journal, shutdown)
    inbox.ran = 5
    inbox.count_run(0.1)
    assert shutdown.recycled

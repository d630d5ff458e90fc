"""The journal of a worker process shows its successor the progress of each job."""

import os
import signal
import time

from drain.tables.fences import Fence
from drain.workers.handover.journal import SLOTS, Entry, Journal, Progress

NEVER = float("inf")


def test_the_journal_shows_the_progress_of_each_job() -> None:
    journal = Journal()
    fences = [Fence(job_id, 10 * job_id, None if job_id == 1 else -2 + job_id, "w") for job_id in range(1, 6)]
    slots = [journal.add(fence, 100 * fence.id) for fence in fences]
    journal.begin(slots[1], 1.5)
    journal.begin(slots[2], 1.5)
    journal.finish(slots[2])
    journal.begin(slots[3], 1.5)
    journal.end(slots[3])
    journal.clear(slots[4])
    assert journal.entries() == [
        Entry(fences[0], 100, Progress.CLAIMED, NEVER),
        Entry(fences[1], 200, Progress.RUNNING, 1.5),
        Entry(fences[2], 300, Progress.FINISHED, NEVER),
        # Nobody knows what it wanted: it is run once more.
        Entry(fences[3], 400, Progress.CLAIMED, NEVER),
    ]


def test_the_parent_reads_a_childs_entries_and_the_next_child_keeps_them() -> None:
    journal = Journal()
    pid = os.fork()
    if pid == 0:
        journal.add(Fence(1, 2, 3, "w"), 4)
        os._exit(0)
    os.waitpid(pid, 0)
    journal.open()
    journal.add(Fence(5, 6, 7, "w"), 8)
    assert {entry.fence.id for entry in journal.entries()} == {1, 5}
    journal.forget([entry for entry in journal.entries() if entry.fence.id == 1])
    assert [entry.fence.id for entry in journal.entries()] == [5]


def test_a_slot_that_was_cleared_is_used_again() -> None:
    journal = Journal()
    for job_id in range(3 * SLOTS):
        assert journal.room == SLOTS
        journal.clear(journal.add(Fence(job_id, 1, None, "w"), 1))
    assert journal.entries() == []


def test_only_running_jobs_are_overdue_and_leftover_entries_never() -> None:
    journal = Journal()
    past = time.monotonic() - 1
    slot = journal.add(Fence(1, 1, None, "w"), 1)
    assert not journal.is_overdue()
    journal.begin(slot, past)
    assert journal.is_overdue()
    journal.close()
    assert not journal.is_overdue()
    journal.begin(slot, past)
    journal.finish(slot)
    assert not journal.is_overdue()


def test_a_new_process_has_not_resigned() -> None:
    journal = Journal()
    assert not journal.resigned
    journal.resigned = True
    assert journal.resigned
    journal.open()
    assert not journal.resigned


def test_a_process_that_has_ended_runs_no_plain_job() -> None:
    journal = Journal()
    journal.runs_plain_job = True
    journal.close()
    assert not journal.runs_plain_job


def test_a_starting_job_is_never_overdue() -> None:
    """Another process begins jobs without end, while this one looks, as the supervisor does."""
    journal = Journal()
    slot = journal.add(Fence(1, 1, None, "w"), 1)
    journal.begin(slot, time.monotonic() + 3600)
    pid = os.fork()
    if pid == 0:
        while True:
            journal.begin(slot, time.monotonic() + 3600)
    try:
        assert not any(journal.is_overdue() for _ in range(500))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

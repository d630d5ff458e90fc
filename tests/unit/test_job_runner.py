"""Jobs that a stopping worker leaves, and those whose transaction was undone."""

from typing import Any, cast

from drain.config import Settings
from drain.workers.errors import Dead, WorkerStoppedError
from drain.workers.execution.outcome import GaveUp, Interrupted, describe
from drain.workers.handover.journal import Journal
from drain.workers.options import WorkOptions
from drain.workers.process.inbox import Inbox
from drain.workers.process.job_runner import JobRunner
from drain.workers.process.sharing import _runs_again
from drain.workers.process.shutdown import Shutdown
from tests.unit.test_finisher import claimed

_NOTHING: Any = None


def test_a_job_that_was_to_run_again_is_recorded_as_its_worker_stops() -> None:
    journal = Journal()
    shutdown = Shutdown(30, journal)
    inbox = Inbox(WorkOptions(queues=["default"]), journal, shutdown)
    undone = claimed(inbox, 1, 2)
    inbox.waiting.clear()
    inbox.return_first(undone)
    rest = (_NOTHING, inbox, shutdown, _NOTHING, _NOTHING, _NOTHING, _NOTHING)
    JobRunner(Settings(database_url="postgresql://"), *cast(Any, rest)).leave_waiting()
    assert [job for job, _ in inbox.outcomes] == undone
    assert all(isinstance(outcome, Interrupted) for _, outcome in inbox.outcomes)
    assert inbox.first_waiting is None


def test_a_job_that_gave_up_in_an_undone_batch_runs_again_unless_stopped() -> None:
    journal = Journal()
    inbox = Inbox(WorkOptions(queues=["default"]), journal, Shutdown(30, journal))
    (job,) = claimed(inbox, 1)
    error = Dead("enough")
    outcome = GaveUp(describe(error), error)
    assert _runs_again(job, outcome, undone=True)
    assert not _runs_again(job, outcome, undone=False)
    job.interruption.order(WorkerStoppedError("stopping"), stopped=True)
    assert _runs_again(job, outcome, undone=True)
    job.interruption.order(error)
    assert not _runs_again(job, outcome, undone=True)

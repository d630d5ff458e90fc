"""The thread of a worker process that listens for RQ's commands."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from drain.workers.errors import Dead, WorkerStoppedError
from drain.workers.process import rq_commands, rq_worker
from drain.workers.process.running import RunningJobs


@pytest.mark.parametrize(
    "error", [redis.TimeoutError("late"), redis.ResponseError("NOPERM"), ValueError("no")]
)
def test_the_worker_listens_again_after_any_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rq_commands, "_LISTEN_AGAIN_SECONDS", 0.0)
    broken_off: list[bool] = []
    pubsub = SimpleNamespace(connection=SimpleNamespace(disconnect=lambda: broken_off.append(True)))
    worker: Any = SimpleNamespace(log=logging.getLogger("tests.rq"), name="one")

    rq_worker.RQWorker._pubsub_exception_handler(worker, error, pubsub, None)

    assert broken_off == [True]
    assert "cannot be received" in caplog.text


def job_that_hears(ordered: list[tuple[str, Exception]], name: str) -> Any:
    def order(cause: Exception, *, stopped: bool) -> None:
        assert not stopped
        ordered.append((name, cause))

    # One that can be in a set.
    return type("Job", (), {"interruption": SimpleNamespace(order=order)})()


def commanded(running: RunningJobs, current: str | None, stop: str | None = None) -> None:
    """Obey stop-job for a job, or else kill-horse."""
    worker: Any = SimpleNamespace(
        _inbox=SimpleNamespace(running=running), _stopped_job_id=stop, get_current_job_id=lambda: current
    )
    rq_worker.RQWorker.kill_horse(worker)


def test_kill_horse_ends_attempts_in_threads_and_in_the_event_loop() -> None:
    ordered: list[tuple[str, Exception]] = []
    running = RunningJobs()
    running.begin_in_thread(job_that_hears(ordered, "in a thread"))
    running.begin_async(job_that_hears(ordered, "in the loop"))
    commanded(running, current=None)
    assert {name for name, _ in ordered} == {"in a thread", "in the loop"}
    # They run again.
    assert {type(cause) for _, cause in ordered} == {WorkerStoppedError}


@pytest.mark.parametrize(("current", "heard"), [("app-1-1", ["main"]), ("app-2-2", []), (None, [])])
def test_stop_job_ends_the_job_that_it_names_and_no_other(current: str | None, heard: list[str]) -> None:
    ordered: list[tuple[str, Exception]] = []
    running = RunningJobs()
    running.begin(job_that_hears(ordered, "main"))
    running.begin_in_thread(job_that_hears(ordered, "in a thread"))
    running.begin_async(job_that_hears(ordered, "in the loop"))
    commanded(running, current, stop="app-1-1")
    assert [name for name, _ in ordered] == heard
    assert all(type(cause) is Dead for _, cause in ordered)

"""`drain work` and the RQ process in which it runs plain RQ jobs: how they begin, wait for each other, and end."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from rq import Callback, Queue, Worker
from rq.command import send_shutdown_command
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry

from drain.contrib.plain.channel_worker import _is_alive
from drain.workers.process.rq_commands import replace_at_birth
from tests import jobs_in_batches as jobs, plain_probes as probes
from tests.helpers import (
    DRAIN,
    NAMESPACE,
    PATIENCE_SECONDS,
    drain_command,
    end,
    impatient,
    listening_rq_worker,
    only_rq_worker,
    rq_workers,
    wait_until,
)
from tests.worker_processes import Yard, children, kill_worker

pytestmark = pytest.mark.every_python

MODES = pytest.mark.parametrize("mode", ["fork", "inline"])
IN_A_HURRY = impatient({"drain.workers.supervisor.supervisor._KILL_SECONDS": 1.0})
# A busy process takes longer than a second to end.
LESS_HURRIED = impatient({"drain.workers.supervisor.supervisor._KILL_SECONDS": 5.0})


@pytest.fixture
def queue(client: Redis) -> Queue:
    return Queue("default", connection=client)


def marks(client: Redis) -> list[str]:
    found: Any = client.lrange(probes.MARKS, 0, -1)
    return [mark.decode() for mark in found]


def no_worker_is_left(client: Redis) -> bool:
    return not client.smembers("rq:workers") and not client.smembers("rq:workers:default")


@MODES
def test_a_warm_stop_waits_for_a_plain_job_beyond_the_grace_period(
    yard: Yard, client: Redis, queue: Queue, mode: str
) -> None:
    job = queue.enqueue(probes.wait_for, "go")
    with yard.working("--plain", mode, "--grace-seconds", "0.1", **LESS_HURRIED) as command:
        wait_until(lambda: marks(client), PATIENCE_SECONDS)
        command.terminate()
        (line,) = wait_until(lambda: command.events("plain_job_runs"), PATIENCE_SECONDS)
        assert job.id in line["message"]
        assert "queue default" in line["message"]
        with pytest.raises(TimeoutError):
            raise_after(command, 1.5)
        client.set("go", 1)
        assert command.wait(PATIENCE_SECONDS) == 0
        assert not command.events("killed")
    assert job.get_status() is JobStatus.FINISHED
    assert no_worker_is_left(client)


@MODES
def test_a_second_signal_ends_a_plain_job_like_rqs_cold_shutdown(
    yard: Yard, client: Redis, queue: Queue, mode: str
) -> None:
    job = queue.enqueue(probes.wait_for, "go")
    with yard.working("--plain", mode) as command:
        wait_until(lambda: marks(client), PATIENCE_SECONDS)
        command.terminate()
        wait_until(lambda: command.events("stopping"), PATIENCE_SECONDS)
        command.terminate()
        assert command.wait(PATIENCE_SECONDS) == 0
        (line,) = command.events("plain_job_ended")
        assert job.id in line["message"]
    assert job.get_status() is (JobStatus.STARTED if mode == "fork" else JobStatus.FAILED)
    assert no_worker_is_left(client)


def test_rqs_shutdown_command_ends_the_worker_process(yard: Yard, client: Redis, queue: Queue) -> None:
    job = queue.enqueue(probes.wait_for, "go")
    with yard.working() as command:
        wait_until(lambda: marks(client), PATIENCE_SECONDS)
        send_shutdown_command(client, only_rq_worker(client, tracked=False).name)
        wait_until(
            lambda: client.hget(only_rq_worker(client, tracked=False).key, "shutdown_requested_date"),
            PATIENCE_SECONDS,
        )
        client.set("go", 1)
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("started")) == 1
    assert job.get_status() is JobStatus.FINISHED


def test_a_killed_rq_process_is_replaced_and_leaves_no_ghost(yard: Yard, client: Redis, queue: Queue) -> None:
    with yard.working() as command:
        first = only_rq_worker(client, tracked=False)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: command.events("rq_process_died"), PATIENCE_SECONDS)
        job = queue.enqueue(probes.note, "afterwards")
        wait_until(lambda: job.get_status() is JobStatus.FINISHED, PATIENCE_SECONDS)
        assert only_rq_worker(client, tracked=False).pid != first.pid
        # The worker of tracked jobs registers in a thread of its own.
        wait_until(lambda: len(Worker.all(connection=client)) == 2, PATIENCE_SECONDS)
        assert end(command) == 0
    assert no_worker_is_left(client)


def test_a_killed_workers_plain_job_ends_and_no_ghost_is_left(
    yard: Yard, client: Redis, queue: Queue
) -> None:
    job = queue.enqueue(probes.wait_for, "go")
    with yard.working() as command:
        wait_until(lambda: marks(client), PATIENCE_SECONDS)
        killed = only_rq_worker(client, tracked=False)
        kill_worker(command)
        wait_until(lambda: len(command.events("started")) == 2, PATIENCE_SECONDS)
        client.set("go", 1)
        wait_until(lambda: job.get_status() is JobStatus.FINISHED, PATIENCE_SECONDS)
        (pid,) = children(command)

        def is_listed() -> bool:
            pids = {worker.pid for worker in Worker.all(connection=client)}
            return len(pids) == 2 and pid in pids and killed.pid not in pids

        wait_until(is_listed, PATIENCE_SECONDS)
        assert end(command) == 0
    assert no_worker_is_left(client)


def test_hard_exits_in_one_process_leave_no_ghost(yard: Yard, client: Redis, queue: Queue) -> None:
    failed = [queue.enqueue(probes.exit_hard, 1) for _ in range(2)]
    with yard.working("--burst", "--plain", "inline") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("rq_process_died")) == 2
    assert no_worker_is_left(client)
    # As under RQ's own SimpleWorker, until they are taken for abandoned.
    assert {job.get_status() for job in failed} == {JobStatus.STARTED}


def test_a_plain_job_at_the_head_blocks_nothing_while_coroutines_run(
    yard: Yard, client: Redis, queue: Queue
) -> None:
    waiting = yard.pushed(jobs.settle_together, "waiting")
    plain = queue.enqueue(probes.note, "plain")
    behind = yard.pushed(jobs.note, "behind")
    with yard.working() as command:
        yard.wait_for("finished_jobs", behind)
        # RQ's worker, where it was not ready in time, runs it after those.
        wait_until(lambda: plain.get_status() is JobStatus.FINISHED, PATIENCE_SECONDS)
        assert not yard.all_are("finished_jobs", waiting)
        yard.say("go")
        yard.wait_for("finished_jobs", waiting)
        assert end(command) == 0


@MODES
@pytest.mark.parametrize("threads", ["1", "2"])
def test_tracked_jobs_run_alongside_slow_and_waiting_plain_jobs(
    yard: Yard, client: Redis, queue: Queue, mode: str, threads: str
) -> None:
    slow = queue.enqueue(probes.wait_for, "go")
    others = [queue.enqueue(probes.note, word) for word in ("one", "two", "three")]
    with yard.working("--plain", mode, "--threads", threads) as command:
        wait_until(lambda: marks(client))
        ids = [*yard.pushed(jobs.note, "sync"), *yard.pushed(jobs.settle_together, "async")]
        yard.say("go")
        yard.wait_for("finished_jobs", ids)
        # A job of RQ's own is shown with RQ's own worker alone.
        wait_until(lambda: shown_as(client, tracked=True) == ("idle", 2))
        assert shown_as(client, tracked=False) == ("busy", 0)
        assert {job.get_status() for job in others} == {JobStatus.QUEUED}
        client.set("go", 1)
        wait_until(lambda: {job.get_status() for job in [slow, *others]} == {JobStatus.FINISHED})
        assert end(command) == 0
    assert marks(client) == ["waits for go", "one", "two", "three"]
    assert not list(client.scan_iter("*:intermediate"))


def shown_as(client: Redis, *, tracked: bool) -> tuple[str, int]:
    worker = only_rq_worker(client, tracked=tracked)
    return str(worker.get_state()), worker.successful_job_count


def test_a_burst_comes_back_for_plain_jobs_it_had_no_room_for(
    yard: Yard, client: Redis, queue: Queue
) -> None:
    words = [str(number) for number in range(20)]
    for word in words:
        queue.enqueue(probes.note, word)
    ids = yard.pushed(jobs.note, "behind")
    with yard.working("--burst", "--plain", "inline") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert marks(client) == words
    assert yard.all_are("finished_jobs", ids)


def test_jobs_waiting_behind_a_plain_job_go_to_other_workers(yard: Yard, client: Redis, queue: Queue) -> None:
    slow = queue.enqueue(probes.wait_for, "go")
    others = [queue.enqueue(probes.note, word) for word in ("one", "two")]
    with yard.working("--prefetch", "3") as first:
        wait_until(lambda: marks(client), PATIENCE_SECONDS)
        with yard.working("--prefetch", "3") as second:
            wait_until(lambda: {job.get_status() for job in others} == {JobStatus.FINISHED}, PATIENCE_SECONDS)
            assert slow.get_status() is JobStatus.STARTED
            client.set("go", 1)
            assert end(second) == 0
        assert end(first) == 0
    first_mark, *others_marks = marks(client)
    assert (first_mark, sorted(others_marks)) == ("waits for go", ["one", "two"])


def test_a_worker_ends_after_the_maximum_idle_time(yard: Yard, client: Redis, queue: Queue) -> None:
    # Before they start: they do not wait for longer than that until a test has enqueued it.
    job = queue.enqueue(probes.note, "one")
    with yard.working("--max-idle-time", "0.3", "--processes", "2") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("idle")) == 2
    assert job.get_status() is JobStatus.FINISHED


@pytest.mark.parametrize("words", [("--burst",), ()], ids=["in a burst", "for good"])
def test_rqs_scheduler_enqueues_due_jobs(
    yard: Yard, client: Redis, queue: Queue, words: tuple[str, ...]
) -> None:
    due = queue.enqueue_in(timedelta(seconds=-1), probes.note, "due")
    with yard.working("--with-scheduler", *words) as command:
        wait_until(lambda: due.get_status() is JobStatus.FINISHED, PATIENCE_SECONDS)
        assert command.wait(PATIENCE_SECONDS) == 0 if words else end(command) == 0
    assert not client.keys("rq:scheduler-lock:*")


def test_each_process_has_a_worker_name_of_its_own(yard: Yard, client: Redis) -> None:
    with yard.working("--name", "Alice", "--processes", "2") as command:
        expected = {"Alice.1", "Alice.2", "Alice.1.tracked", "Alice.2.tracked"}
        wait_until(lambda: {w.name for w in Worker.all(connection=client)} == expected, PATIENCE_SECONDS)
        assert end(command) == 0
    assert no_worker_is_left(client)


def test_the_worker_name_of_a_dead_process_is_taken_over(yard: Yard, client: Redis) -> None:
    with yard.working("--name", "Alice") as command:
        wait_until(lambda: len(pids(client)) == 2, PATIENCE_SECONDS)
        dead = pids(client)
        assert all(dead)
        command.kill()
        command.wait(PATIENCE_SECONDS)
    # They notice the death of their parent; before, the name is in use.
    wait_until(lambda: not any(map(_is_alive, dead)), PATIENCE_SECONDS)
    with yard.working("--name", "Alice") as command:

        def names() -> bool:
            is_new = not pids(client) & dead
            return is_new and {w.name for w in Worker.all(connection=client)} == {"Alice", "Alice.tracked"}

        wait_until(names, PATIENCE_SECONDS)
        assert end(command) == 0
    assert no_worker_is_left(client)


def pids(client: Redis) -> set[int]:
    return {worker.pid or 0 for worker in Worker.all(connection=client)}


def test_a_worker_name_always_has_a_hash_during_a_takeover(client: Redis) -> None:
    """RQ removes a name without a hash from its set of workers, possibly after the new worker has registered."""
    for _ in range(2):
        worker = Worker([], name="Alice", connection=client)
        replace_at_birth(worker)
        before = Worker.all(connection=client)
        worker.register_birth()  # type: ignore[no-untyped-call]
    assert [worker.name for worker in before] == ["Alice"]
    assert [worker.death_date for worker in Worker.all(connection=client)] == [None]


@pytest.mark.parametrize("name", ["my queue", "a/b,c", "Aufträge"])
def test_queues_of_any_name_are_worked_on(yard: Yard, client: Redis, name: str) -> None:
    job = Queue(name, connection=client).enqueue(probes.note, "one")
    looks_like_ours = Queue(name, connection=client).enqueue(
        probes.note, "two", job_id=probes.LOOKS_LIKE_OURS
    )
    with yard.working(name, "--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert job.get_status() is looks_like_ours.get_status() is JobStatus.FINISHED


def test_a_plain_job_with_a_tracked_id_is_refused_in_refuse_mode(
    yard: Yard, client: Redis, queue: Queue
) -> None:
    job = queue.enqueue(probes.note, "never", job_id=f"{NAMESPACE}-1-2")
    with yard.working("--burst", "--plain", "refuse") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert job.get_status() is JobStatus.FAILED
    assert marks(client) == []


@pytest.mark.parametrize(
    ("option", "path", "reason"),
    [
        ("--serializer", "tests.nowhere", "ValueError"),
        ("--serializer", "os.getpid", "Serializer should have"),
        ("--job-class", "tests.nowhere.OddJob", "ValueError"),
        ("--exception-handler", "tests.plain_probes.MARKS", "cannot be called"),
    ],
)
def test_an_option_naming_an_unimportable_object_is_refused_in_one_line(
    yard: Yard, option: str, path: str, reason: str
) -> None:
    with drain_command("work", option, path, env=yard.env()) as command:
        assert command.wait(PATIENCE_SECONDS) == 1
        (line,) = command.output.splitlines()
    assert line.startswith(f"Error: {option} '{path}': ")
    assert reason in line


def test_an_abandoned_job_with_a_callback_is_cleaned_up_at_the_start(
    yard: Yard, client: Redis, queue: Queue
) -> None:
    job = queue.enqueue(probes.note, "abandoned", on_failure=Callback(probes.on_failure))
    client.delete(queue.key)
    job.set_status(JobStatus.STARTED)
    started = StartedJobRegistry(queue=queue)
    client.zadd(started.key, {f"{job.id}:execution": 1})
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert marks(client) == [f"on_failure {job.id} AbandonedJobError"]
    assert job.id in FailedJobRegistry(queue=queue).get_job_ids(cleanup=False)
    assert not client.keys("rq:clean_registries:*")


@pytest.mark.parametrize("rq_id", ["any", probes.LOOKS_LIKE_OURS])
def test_a_job_that_rq_has_not_started_is_returned_if_its_process_dies(
    yard: Yard, client: Redis, queue: Queue, rq_id: str
) -> None:
    """A crash between the answer and RQ's first word about the job."""
    job = queue.enqueue(probes.note, "once", job_id=rq_id)
    dies_once = (
        "import os, signal; from drain.contrib.plain.channel_worker import ChannelWorker as W; found = W._load\n"
        "def die(worker, queue, rq_id):\n"
        "    if worker.connection.incr('deaths') == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return found(worker, queue, rq_id)\n"
        "W._load = die\n"
    )
    with drain_command("work", "--burst", env=yard.env(), program=dies_once + DRAIN) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert job.get_status() is JobStatus.FINISHED
    assert marks(client) == ["once"]


@MODES
def test_a_shutdown_command_that_comes_before_rqs_signal_handlers_is_obeyed(
    yard: Yard, client: Redis, mode: str
) -> None:
    """RQ's worker listens for commands a moment before; the signal that it sends to itself is ignored then."""
    is_slow = (
        "import threading; from drain.contrib.plain.channel_worker import ChannelWorker as W\n"
        "obeyed, obey, install = threading.Event(), W.obey, W._install_signal_handlers\n"
        "def obey_and_note(worker, payload):\n"
        "    obey(worker, payload)\n"
        "    obeyed.set()\n"
        "def install_afterwards(worker):\n"
        "    obeyed.wait()\n"
        "    install(worker)\n"
        "W.obey, W._install_signal_handlers = obey_and_note, install_afterwards\n"
    )
    with drain_command("work", "--plain", mode, env=yard.env(), program=is_slow + DRAIN) as command:
        send_shutdown_command(client, listening_rq_worker(client, tracked=False).name)
        assert command.wait(PATIENCE_SECONDS) == 0
    assert no_worker_is_left(client)


def test_a_brief_redis_failure_does_not_lose_a_job(yard: Yard, client: Redis, queue: Queue) -> None:
    job = queue.enqueue(probes.note, "once")
    fails_once = (
        "import redis; from rq.job import Job; refresh = Job.refresh\n"
        "def fail(job):\n"
        "    if job.connection.incr('failures') == 1: raise redis.ConnectionError('away for a moment')\n"
        "    return refresh(job)\n"
        "Job.refresh = fail\n"
    )
    with drain_command("work", "--burst", env=yard.env(), program=fails_once + DRAIN) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("started")) == 1
    assert job.get_status() is JobStatus.FINISHED
    assert marks(client) == ["once"]


def test_a_worker_name_used_on_another_machine_is_not_taken(yard: Yard, client: Redis) -> None:
    # No process has this id here.
    client.hset("rq:worker:Alice", mapping={"pid": 2**30, "hostname": "elsewhere"})
    with yard.working("--name", "Alice") as command:
        wait_until(
            lambda: any(w.name.startswith("Alice.") for w in rq_workers(client, tracked=False)),
            PATIENCE_SECONDS,
        )
        assert end(command) == 0
    assert client.hget("rq:worker:Alice", "hostname") == b"elsewhere"


def test_a_tracked_job_behind_a_plain_one_gets_only_the_grace_period(
    yard: Yard, client: Redis, queue: Queue
) -> None:
    plain = queue.enqueue(probes.note, "plain")
    stubborn = yard.pushed(jobs.never_yield, "stubborn")
    with yard.working("--grace-seconds", "0.1", **IN_A_HURRY) as command:
        wait_until(lambda: yard.effects() == ["stubborn"], PATIENCE_SECONDS)
        wait_until(lambda: plain.get_status() is JobStatus.FINISHED)
        assert end(command) == 0
        assert command.events("killed")
    assert yard.place(stubborn[0]) == "inflight_jobs"


def test_a_second_signal_ends_an_rq_process_that_ignores_signals(
    yard: Yard, client: Redis, queue: Queue
) -> None:
    queue.enqueue(probes.hear_no_signal)
    with yard.working(
        "--plain", "inline", **impatient({"drain.contrib.plain.jobs._KILL_SECONDS": 0.1})
    ) as command:
        wait_until(lambda: marks(client), PATIENCE_SECONDS)
        (pid,) = map(int, marks(client))
        command.terminate()
        wait_until(lambda: command.events("stopping"), PATIENCE_SECONDS)
        command.terminate()
        assert command.wait(PATIENCE_SECONDS) == 0
        assert not command.events("killed")
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert no_worker_is_left(client)


def raise_after(command: Any, seconds: float) -> None:
    """Raise TimeoutError if the command still runs then."""
    try:
        wait_until(lambda: command.poll() is not None, seconds)
    except AssertionError:
        raise TimeoutError from None

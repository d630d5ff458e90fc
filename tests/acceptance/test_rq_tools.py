"""What RQ's own tools see of `drain work`, and what they make it do; and RQ's own jobs on its queues."""

import subprocess

import pytest
from redis import Redis
from rq import Queue, Worker
from rq.command import send_kill_horse_command, send_shutdown_command, send_stop_job_command
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry
from rq.suspension import resume, suspend

from tests import jobs_in_batches as jobs
from tests.helpers import (
    PATIENCE_SECONDS,
    RQ_PROGRAM,
    end,
    impatient,
    leading,
    listening_rq_worker,
    only_rq_worker,
    pushed,
    pushed_jobs,
    rq_workers,
    wait_until,
)
from tests.worker_processes import Yard, children

pytestmark = pytest.mark.every_python


def test_rq_lists_each_process_with_its_queues_its_state_and_its_counts(yard: Yard, client: Redis) -> None:
    ids = yard.pushed(jobs.note, *map(str, range(5)))
    dead = yard.pushed(jobs.fail, "luck", "time")
    with yard.working("default", "mail", "--processes", "2") as command:
        yard.wait_for("finished_jobs", ids)
        yard.wait_for("dead_jobs", dead)

        def counts() -> tuple[int, int]:
            listed = rq_workers(client, tracked=True)
            return sum(w.successful_job_count for w in listed), sum(w.failed_job_count for w in listed)

        wait_until(lambda: counts() == (5, 2), PATIENCE_SECONDS)
        # A process may have run all jobs before the other one has registered.
        wait_until(
            lambda: {each.pid for each in rq_workers(client, tracked=True)} == set(children(command)),
            PATIENCE_SECONDS,
        )
        wait_until(lambda: len(rq_workers(client, tracked=False)) == 2, PATIENCE_SECONDS)
        assert [w.queue_names() for w in Worker.all(connection=client)] == [["default", "mail"]] * 4
        wait_until(
            lambda: {w.get_state() for w in Worker.all(connection=client)} == {"idle"}, PATIENCE_SECONDS
        )
        shown = subprocess.run(
            [RQ_PROGRAM, "info", "-u", yard.redis_url],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        ).stdout
        assert "4 workers" in shown
        assert end(command) == 0
    assert Worker.all(connection=client) == []


def test_a_worker_is_listed_again_when_redis_has_lost_its_memory(yard: Yard, client: Redis) -> None:
    with yard.working(**impatient({"drain.workers.process.rq_presence._HEARTBEAT_SECONDS": 0.5})) as command:
        only_rq_worker(client, tracked=True)
        client.flushall()
        with leading(yard.env()):
            ids = yard.stage(jobs.note, "afterwards")
            yard.wait_for("finished_jobs", ids)
        worker = only_rq_worker(client, tracked=True)
        assert [worker.pid] == children(command)
        assert end(command) == 0


def test_rq_suspend_stops_workers_from_taking_jobs_until_rq_resume(yard: Yard, client: Redis) -> None:
    with yard.working() as command:
        worker = only_rq_worker(client, tracked=True)
        first = yard.pushed(jobs.note, "first")
        yard.wait_for("finished_jobs", first)
        suspend(client)
        # The one that it waits for has been pushed after it went to wait: it gives that back.
        ids = yard.pushed(jobs.note, "second", "third")
        wait_until(lambda: state_of(client, worker) == "suspended", PATIENCE_SECONDS)
        # For a moment of each second it has the first of them, before it asks whether it is suspended.
        wait_until(lambda: pushed_jobs(yard.redis_url) == ids, PATIENCE_SECONDS)
        assert yard.effects() == ["first"]
        resume(client)
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert yard.effects() == ["first", "second", "third"]


def state_of(client: Redis, worker: Worker) -> str:
    text = client.hget(worker.key, "state")
    return text.decode() if isinstance(text, bytes) else ""


def test_the_shutdown_command_ends_the_process_without_a_replacement(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.wait_for_go, "running")
    with yard.working() as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        send_shutdown_command(client, listening_rq_worker(client, tracked=True).name)
        yard.say("go")
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("started")) == 1
    assert yard.place(job_id) == "finished_jobs"


def test_the_stop_command_ends_a_job_for_good(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.wait_for_go, "running")
    (rq_id,) = pushed(yard.redis_url)
    with yard.working() as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        wait_until(lambda: Job.fetch(rq_id, connection=client).worker_name, PATIENCE_SECONDS)
        assert client.hget(only_rq_worker(client, tracked=True).key, "current_job") == rq_id.encode()
        send_stop_job_command(client, rq_id)
        yard.wait_for("dead_jobs", [job_id])
        others = yard.pushed(jobs.note, "next")
        yard.wait_for("finished_jobs", others)
        assert end(command) == 0
    assert yard.row(job_id)["explanation"] == "stopped by RQ's stop-job command"


def test_the_kill_horse_command_ends_an_attempt(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.wait_for_go, "running")
    with yard.working() as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        send_kill_horse_command(client, listening_rq_worker(client, tracked=True).name)
        wait_until(lambda: yard.row(job_id)["last_error"], PATIENCE_SECONDS)
        assert yard.row(job_id)["last_error"]["type"] == "drain.workers.errors.WorkerStoppedError"
        # A person has ended it, and no deploy: it counts.
        assert (yard.row(job_id)["attempts"], yard.row(job_id)["interruptions"]) == (1, 0)
        yard.say("go")
        assert end(command) == 0


# --- RQ's own jobs


@pytest.mark.parametrize("queues", [["default"], ["default", "mail"]], ids=["one queue", "two queues"])
def test_plain_rq_jobs_among_tracked_ones_are_executed_as_by_rq(
    yard: Yard, client: Redis, queues: list[str]
) -> None:
    queue = Queue("default", connection=client)
    first = queue.enqueue(jobs.plain, "one")
    ours = yard.pushed(jobs.note, "two", "three")
    failing = queue.enqueue(jobs.plain_failure, "luck")
    unreadable = queue.enqueue("tests.nowhere.to_be_found")
    last = queue.enqueue(jobs.plain, "four")
    with yard.working("--burst", *queues) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    # A plain job and tracked ones run at the same time.
    assert sorted(yard.effects()) == sorted(["one", "two", "three", "four"])
    assert yard.all_are("finished_jobs", ours)
    assert first.get_status() is JobStatus.FINISHED
    assert last.return_value() == "done four"
    assert failing.get_status() is JobStatus.FAILED
    assert "no luck" in str(failing.latest_result().exc_string)  # type: ignore[union-attr]
    assert set(FailedJobRegistry(queue=queue).get_job_ids()) == {failing.id, unreadable.id}
    assert set(FinishedJobRegistry(queue=queue).get_job_ids()) == {first.id, last.id}
    assert not list(client.scan_iter("*:intermediate"))


def test_plain_rq_jobs_that_come_while_the_worker_waits_are_executed_too(yard: Yard, client: Redis) -> None:
    with yard.working("default", "mail") as command, yard.working("other") as one_queue:
        only_worker_of = {tuple(w.queue_names()) for w in wait_until(lambda: two(client), PATIENCE_SECONDS)}
        assert only_worker_of == {("default", "mail"), ("other",)}
        jobs_of_rq = [Queue(name, connection=client).enqueue(jobs.plain, name) for name in ("mail", "other")]
        wait_until(
            lambda: [job.get_status() for job in jobs_of_rq] == [JobStatus.FINISHED] * 2, PATIENCE_SECONDS
        )
        assert end(command) == 0
        assert end(one_queue) == 0
    assert not list(client.scan_iter("*:intermediate"))


def two(client: Redis) -> list[Worker]:
    listed = rq_workers(client, tracked=False)
    return listed if len(listed) == 2 else []


def test_an_id_unknown_to_rq_is_dropped(yard: Yard, client: Redis) -> None:
    queue = Queue("default", connection=client)
    gone = queue.enqueue(jobs.plain, "never")
    client.delete(gone.key)
    client.rpush(queue.key, b"\xff\xfe no text", "")
    last = queue.enqueue(jobs.plain, "last")
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert last.get_status() is JobStatus.FINISHED
    assert not list(client.scan_iter("*:intermediate"))

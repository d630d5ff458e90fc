"""Plain RQ jobs that do what the process that runs them must survive, and what they leave behind in RQ's books.

Each probe enqueues its jobs on one Redis; `found` tells, once a worker has worked on them, what RQ's books say.
"""

import ctypes
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis
from rq import Callback, Queue, Repeat, Retry, get_current_job
from rq.command import send_kill_horse_command, send_stop_job_command
from rq.job import Job
from rq.serializers import JSONSerializer

MODULE = "tests.plain_probes"
MARKS = "marks"
# Whoever is to be killed sleeps for as long; nobody waits for that.
FOREVER_SECONDS = 600
# RQ kills a job that goes on for a minute beyond its timeout; and to alarm(2) a negative one is for ever.
KILLED_AFTER_A_SECOND = -59
LOOKS_LIKE_OURS = "test-1-2"


def _job() -> Job:
    job = get_current_job()
    assert job is not None
    return job


def mark(connection: Redis, *words: object) -> None:
    connection.rpush(MARKS, " ".join(map(str, words)))


# --- jobs


def note(word: str) -> str:
    mark(_job().connection, word)
    return f"done {word}"


def fail(word: str) -> None:
    mark(_job().connection, word)
    raise ValueError(f"no {word}")


def exit_hard(code: int) -> None:
    os._exit(code)


def kill_itself(word: str) -> None:
    mark(_job().connection, word)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_softly() -> None:
    sys.exit(3)


def be_deaf() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    ctypes.CDLL(None).sleep(FOREVER_SECONDS)


def hear_no_signal() -> None:
    """As code in C that holds the interpreter, in its process and all threads of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    mark(_job().connection, os.getpid())
    time.sleep(FOREVER_SECONDS)


def wait_for(key: str) -> None:
    """Return once a test has set this key."""
    connection = _job().connection
    mark(connection, "waits for", key)
    deadline = time.monotonic() + 60
    while not connection.exists(key):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody sets {key}")
        time.sleep(0.01)


def stop_itself() -> None:
    job = _job()
    job.refresh()  # type: ignore[no-untyped-call]
    send_stop_job_command(job.connection, job.id)
    time.sleep(FOREVER_SECONDS)


def kill_its_horse() -> None:
    job = _job()
    job.refresh()  # type: ignore[no-untyped-call]
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_SECONDS})"])
    job.connection.set("child", child.pid)
    send_kill_horse_command(job.connection, job.worker_name or "")
    time.sleep(FOREVER_SECONDS)


def leak() -> None:
    os.chdir("/")
    os.environ["LEAKED"] = "1"
    logging.disable()
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def look_for_leaks() -> list[object]:
    disabled = logging.root.manager.disable
    return [Path.cwd() == Path("/"), os.environ.get("LEAKED"), disabled]


def tell_its_environment() -> list[bool]:
    job = _job()
    return [os.environ["RQ_JOB_ID"] == job.id, bool(os.environ["RQ_WORKER_ID"]), os.getpid() == os.getpgrp()]


def tell_bounds() -> Any:
    return _job().connection.connection_pool.connection_kwargs["socket_timeout"]


def be_kept() -> bool:
    """Whether RQ is told again and again that the job still runs."""
    job = _job()
    registry = job.started_job_registry

    def bound() -> float:
        executions: Any = job.connection.zrange(registry.key, 0, -1, withscores=True)
        return float(max(score for name, score in executions if name.startswith(job.id.encode())))

    first = bound()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if bound() > first:
            return True
        time.sleep(0.05)
    return False


def try_again(times: int) -> object:
    job = _job()
    count = job.connection.incr(f"tries:{job.id}")
    return Retry(max=5) if count <= times else count


def return_what_nobody_can_pickle() -> object:
    return lambda: None


def add(one: int, two: int = 0) -> int:
    return one + two


# --- what RQ calls


def on_success(job: Job, connection: Redis, result: object) -> None:
    mark(connection, "on_success", job.id, type(result).__name__)


def on_failure(job: Job, connection: Redis, kind: type, *_: object) -> None:
    mark(connection, "on_failure", job.id, kind.__name__)


def on_stopped(job: Job, connection: Redis) -> None:
    mark(connection, "on_stopped", job.id)


def handle(job: Job, kind: type, *_: object) -> bool:
    """Exception handler."""
    mark(job.connection, "handled", job.id, kind.__name__)
    return True


class OddJob(Job):
    """A job class of an application's own."""

    def perform(self) -> Any:
        """Run it."""
        mark(self.connection, "performed", self.id)
        return super().perform()


# --- probes

CALLED = {
    "on_success": Callback(on_success),
    "on_failure": Callback(on_failure),
    "on_stopped": Callback(on_stopped),
}
Probe = Callable[[Queue], list[Job]]


def _enqueue(function: Any, *args: Any, **options: Any) -> Probe:
    def probe(queue: Queue) -> list[Job]:
        return [queue.enqueue(function, *args, **CALLED, **options)]

    return probe


def _with_dependents(function: Any, *args: Any, **options: Any) -> Probe:
    def probe(queue: Queue) -> list[Job]:
        first = queue.enqueue(function, *args, **options)
        strict = queue.enqueue(note, "strict", depends_on=first)
        return [first, strict, queue.enqueue(note, "after", depends_on=strict)]

    return probe


def _as_json(queue: Queue) -> list[Job]:
    other = Queue(queue.name, connection=queue.connection, serializer=JSONSerializer)
    return [other.enqueue(add, 1, two=2)]


def _leaks(queue: Queue) -> list[Job]:
    return [queue.enqueue(leak), queue.enqueue(look_for_leaks)]


def _gone(queue: Queue) -> list[Job]:
    job = queue.enqueue(note, "gone")
    queue.connection.delete(job.key)
    return []


PROBES: dict[str, Probe] = {
    "success": _enqueue(note, "one"),
    "failure": _enqueue(fail, "luck"),
    "a hard exit": _enqueue(exit_hard, 3),
    "a hard exit with code 0": _enqueue(exit_hard, 0),
    "six hard exits": lambda queue: [queue.enqueue(exit_hard, 1) for _ in range(6)],
    "a hard exit with dependents": _with_dependents(exit_hard, 1),
    "SIGKILL": _enqueue(kill_itself, "kill"),
    "SIGKILL with a retry": _enqueue(kill_itself, "retried kill", retry=Retry(max=1)),
    "sys.exit": _enqueue(exit_softly),
    "deaf to its timeout": _enqueue(be_deaf, job_timeout=KILLED_AFTER_A_SECOND),
    # Leaves no mark: on a busy machine the time may be over before.
    "timeout": _enqueue(time.sleep, FOREVER_SECONDS, job_timeout=1),
    "stop-job": _enqueue(stop_itself),
    "stop-job with a retry": _enqueue(stop_itself, retry=Retry(max=2)),
    "kill-horse": _enqueue(kill_its_horse),
    "leaks": _leaks,
    "environment": _enqueue(tell_its_environment),
    "bounds of the connection": _enqueue(tell_bounds),
    "no timeout": _enqueue(be_kept, job_timeout=-1),
    "retries": _enqueue(fail, "retried luck", retry=Retry(max=2)),
    "Retry returned": _enqueue(try_again, 2),
    "repeats": _enqueue(note, "again", repeat=Repeat(times=1, interval=0)),
    "dependents": _with_dependents(note, "first"),
    "dependents of a failure": _with_dependents(fail, "dependents"),
    "result_ttl=0": _enqueue(note, "forgotten", result_ttl=0),
    "result that nobody can pickle": _enqueue(return_what_nobody_can_pickle),
    "no such function": _enqueue("tests.nowhere.to_be_found"),
    "JSON under pickle": _as_json,
    "gone": _gone,
    "an id that looks like ours": _enqueue(note, "looks like ours", job_id=LOOKS_LIKE_OURS),
}
# Under a worker with --serializer json and the other options.
PROBES_WITH_OPTIONS: dict[str, Probe] = {
    "JSON": _enqueue(add, 1, two=2),
    "failure": _enqueue(fail, "luck"),
    "a hard exit": _enqueue(exit_hard, 3),
}
OPTIONS = (
    *("--serializer", "json", "--exception-handler", f"{MODULE}.handle", "--job-class", f"{MODULE}.OddJob"),
    *("--name", "Alice", "--results-ttl", "77", "--disable-default-exception-handler"),
)


def found(job: Job, client: Redis) -> dict[str, Any]:
    """What RQ's books say of a job."""
    fields: Any = client.hgetall(job.key)
    queue = Queue("default", connection=client)
    registries = ("started", "finished", "failed", "deferred", "scheduled", "canceled")
    results = Job.fetch(job.id, connection=client, serializer=job.serializer).results() if fields else []
    return {
        "status": fields.get(b"status"),
        "fields": {name for name in fields if name != b"worker_name"},
        "has a bound": client.ttl(job.key) > 0,
        "results": [(result.type.name, _shown(result)) for result in results],
        "lists": [
            name
            for name in registries
            if job.id in getattr(queue, f"{name}_job_registry").get_job_ids(cleanup=False)
        ],
        "executions": client.exists(f"rq:executions:{job.id}"),
    }


def _shown(result: Any) -> object:
    if result.exc_string:
        return result.exc_string.strip().splitlines()[-1]
    try:
        return repr(result.return_value)
    except (pickle.PickleError, AttributeError):
        return "unreadable"

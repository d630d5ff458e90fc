"""What the tests share: waiting with a bound, real processes, and an enqueuer that leads."""

import json
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from redis import Redis
from rq import Worker
from rq.command import PUBSUB_CHANNEL_TEMPLATE

from drain import stage_many
from drain.database import postgres
from drain.embedded import binaries, signals
from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import lanes
from drain.tables.fences import Fence
from drain.wire import Producer
from drain.workers.context import async_connection_cache, connection_cache
from tests.forked import Forked

ROOT = Path(__file__).parents[1]
NAMESPACE = "test"
# Far beyond what any of them takes: it only ends what would hang for ever.
PATIENCE_SECONDS = 60
# As far, for an `rq worker` that is started to empty its queues: one that computed for a second and a half, with the
# processes that it forked, was seen to take longer than 30 s among ten busy processes.
RQ_PATIENCE_SECONDS = 3 * PATIENCE_SECONDS
BOUNDS = "-c lock_timeout=10s -c statement_timeout=30s"
# Programs for `drain_command` and `run_program`.
DRAIN = "from drain.__main__ import main; main()"
RQ = "from rq.cli import main; main()"
# The `rq` program of this Python, for tests that need an executed process.
RQ_PROGRAM = str(Path(sys.executable).with_name("rq"))

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Return the first true value of `condition()`; fail when none has come within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {value!r} after {seconds} s")
        time.sleep(0.01)
    return value


def threads_that_fail(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
    """Let threads of this name fail to start, as when there are too many, for so many times."""
    start = threading.Thread.start
    left = iter(range(times))

    def fail(thread: threading.Thread) -> None:
        if thread.name == name and next(left, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)


class InterruptedHere(Exception):  # noqa: N818
    """What `interrupted_at_each_step` raises."""


def interrupted_at_each_step(act: Callable[[], object]) -> Iterator[int]:
    """Call `act` again and again, and raise in it at its first step, its second one and so on, as a signal may."""

    def step_or_raise(_frame: FrameType, _event: str, _argument: object) -> Any:
        if next(steps, None) is None:
            raise InterruptedHere
        return step_or_raise

    for last in count():
        steps, outer = iter(range(last)), sys.gettrace()
        try:
            sys.settrace(step_or_raise)
            act()
        except InterruptedHere:
            yield last
        else:
            return
        finally:
            sys.settrace(outer)


def environment(database_url: str, redis_url: str, **more: str) -> dict[str, str]:
    """Environment of a process of ours: these two servers, and no setting of whoever runs the tests."""
    # What it starts servers from is not its setting but that of the whole run.
    inherited = {
        name: text
        for name, text in os.environ.items()
        if name in (binaries.POSTGRES, binaries.REDIS)
        or (not name.startswith("DRAIN_") and name not in ("NOTIFY_SOCKET", "FORCE_COLOR", "COLUMNS"))
    }
    ours = {"DRAIN_DATABASE_URL": database_url, "DRAIN_REDIS_URL": redis_url, "DRAIN_NAMESPACE": NAMESPACE}
    return inherited | ours | more


def impatient(seconds: Mapping[str, float]) -> dict[str, str]:
    """Environment of a process in which constants are other ones: seconds by `package.module.NAME`."""
    return {"SITE_SECONDS": json.dumps(dict(seconds)), "PYTHONPATH": f"{ROOT / 'tests' / 'impatient'}:{ROOT}"}


def in_a_hurry() -> dict[str, str]:
    """Environment of a process whose Spark does not give way to all that the machine does besides, such as tests."""
    return {"DRAIN_NICE": "0"}


class Command:
    """A `drain` process, and what it has written so far on both of its streams.

    Attributes:
        pid: Its process id, which is that of its process group too.
    """

    def __init__(self, process: subprocess.Popen[bytes] | Forked, written: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._written = written

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None until `poll` or `wait` has seen its end."""
        return self._process.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> int:
        """Wait for the process to end and return its exit code; raises `TimeoutExpired`."""
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        """Send a signal to it alone, unless it has ended."""
        self._process.send_signal(number)

    def terminate(self) -> None:
        """Send it SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL it at once, and the processes that it has started, as when their machine dies."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def signal_all(self, number: int) -> None:
        """Send a signal to it and to the processes that it has started."""
        os.killpg(self.pid, number)

    def children(self) -> list[int]:
        """Process ids of those that it has started and that run."""
        return signals.children(self.pid)

    @property
    def output(self) -> str:
        return self._written.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines of one event, so far."""
        # The last line may be half written.
        whole = self.output.rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == name]


def all_with(name: str, text: str) -> dict[int, str]:
    """What runs with this in its environment, wherever it was started from: command lines by process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        # One that has just ended, or a zombie, has none.
        with suppress(OSError):
            if f"{name}={text}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
    return found


@contextmanager
def drain_command(
    *args: str, env: Mapping[str, str], program: str = DRAIN, cwd: Path = ROOT
) -> Iterator[Command]:
    """Run `drain` with these words for as long as the block runs; a failure shows what it wrote.

    The process is forked from one that has imported `drain`, unless it has an import path or directory of its own.
    """
    with tempfile.NamedTemporaryFile() as written:
        path = Path(written.name)
        process: subprocess.Popen[bytes] | Forked
        ours = (None, str(ROOT), os.environ.get("PYTHONPATH"))
        if cwd == ROOT and env.get("PYTHONPATH") in ours:
            process = Forked(program, args, env, cwd, path)
        else:
            process = subprocess.Popen(
                [sys.executable, "-c", program, *args],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        command = Command(process, path)
        try:
            yield command
        except BaseException as error:
            error.add_note(f"output of `drain {' '.join(args)}`:\n{command.output}")
            raise
        finally:
            command.kill()
            command.wait(PATIENCE_SECONDS)


def run_program(
    program: str,
    *words: str,
    env: Mapping[str, str],
    seconds: float = PATIENCE_SECONDS,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, forked from a process that has imported what it needs.

    With `check`, an exit code other than 0 fails the test and shows the output.
    """
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        process = Forked(program, words, env, ROOT, Path(output.name), Path(errors.name))
        try:
            code = process.wait(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
        written = [file.read().decode(errors="replace") for file in (output, errors)]
    if check and code:
        raise AssertionError(f"exit code {code}:\n" + "".join(written))
    return subprocess.CompletedProcess(process.args, code, *written)


def rq_worker(redis_url: str, *words: str, env: Mapping[str, str]) -> str:
    """Let an unmodified `rq worker` empty its queues; returns what it wrote."""
    done = run_program(
        RQ, "worker", "--burst", "--url", redis_url, *words, env=env, seconds=RQ_PATIENCE_SECONDS
    )
    return done.stdout + done.stderr


def module(name: str) -> str:
    """The program that `python -m NAME` runs."""
    return f"import runpy; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"


@contextmanager
def new_enqueuer(
    database_url: str, redis_url: str, *, namespace: str = NAMESPACE, **options: Any
) -> Iterator[Enqueuer]:
    """An enqueuer that leads for as long as the block runs; the options are those of its class."""
    with postgres.connect(database_url, leader.APPLICATION_NAME) as connection:
        postgres.limit_session(connection, statement_seconds=30, lock_seconds=1)
        # The lock of an earlier one is gone a moment after its connection.
        state = wait_until(lambda: leader.try_to_lead(connection))
        assert state is not None
        with (
            closing(Producer(redis_url, namespace)) as redis,
            Enqueuer(connection, redis, state, **options) as enqueuer,
        ):
            yield enqueuer


def read_by(monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any]) -> None:
    """Let this function read the rows of each batch, of small ones too, in place of `lanes.read_due`."""
    monkeypatch.setattr(lanes, "read_due", read)
    # A search that finds a lane leaves its rows to that function.
    monkeypatch.setattr(lanes, "FIRST_ROWS", 0)


def query(database_url: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Execute one statement in a transaction of its own; returns its rows, if it has any."""
    cursor = connected(database_url).execute(statement.encode(), parameters or None)
    return cursor.fetchall() if cursor.description is not None else []


_connections: dict[tuple[int, str], psycopg.Connection] = {}


def connected(database_url: str) -> psycopg.Connection:
    """Return this thread's connection, which commits each statement by itself, and is kept until the test ends.

    A new one costs the server 10 ms of processor time, and tests that wait for something ask a hundred times a second.
    """
    key = threading.get_ident(), database_url
    kept = _connections.get(key)
    if kept and is_open(kept):
        return kept
    options = f"{conninfo_to_dict(database_url).get('options') or ''} {BOUNDS}"
    if kept:
        kept.close()
    _connections[key] = psycopg.connect(
        database_url, autocommit=True, options=options, prepare_threshold=None
    )
    return _connections[key]


def is_open(connection: psycopg.Connection) -> bool:
    """Whether neither side has closed a connection; sends nothing."""
    # An idle connection becomes readable only when the server closes it.
    return not connection.closed and not select.select([connection.fileno()], [], [], 0)[0]


def effects(database_url: str) -> list[str]:
    """Labels that jobs have left, oldest first."""
    return [label for (label,) in query(database_url, "SELECT label FROM effects ORDER BY id")]


def disconnect() -> None:
    """Close the connections that this process has kept, for tests and for jobs."""
    while _connections:
        _connections.popitem()[1].close()
    connection_cache.close_all()
    async_connection_cache.close_all()


def stage_jobs(database_url: str, count: int = 1, *, job: str = "m.f", **options: Any) -> list[int]:
    """Stage and commit so many jobs, whose only argument counts from 0; returns their ids."""
    connection = connected(database_url)
    with connection.transaction():
        return stage_many(connection, job, [(number,) for number in range(count)], **options)


def deliveries(connection: postgres.Connection, ids: Iterable[int]) -> dict[int, int]:
    """Number of the current delivery of each job, 0 of those that are not in flight, as claims name them."""
    asked = list(ids)
    rows = connection.execute("SELECT id, delivery FROM inflight_jobs WHERE id = ANY (%s)", [asked])
    return dict.fromkeys(asked, 0) | dict(rows.fetchall())


def fence_of(connection: postgres.Connection, job_id: int) -> Fence:
    """The fence of the latest claim of a job in flight."""
    statement = "SELECT id, fencing_token, salt, claimed_by FROM inflight_jobs WHERE id = %s"
    return Fence._make(postgres.fetch_one(connection, statement, (job_id,)))


def redeliver(connection: postgres.Connection, job_id: int) -> None:
    """Make a waiting job claimable, under a new number, as the leader does once its time has come."""
    connection.execute(
        "UPDATE inflight_jobs SET delivery = delivery + 1, next_run_at = NULL "
        "WHERE id = %s AND next_run_at IS NOT NULL",
        [job_id],
    )


def ids_in(database_url: str, table: str) -> list[int]:
    """Ids of all rows of one table, sorted."""
    return [id_ for (id_,) in query(database_url, f"SELECT id FROM {table} ORDER BY id")]


def pushed(redis_url: str, queue: str = "default") -> list[str]:
    """RQ ids in the Redis list of a queue, the next one to be popped first."""
    with Redis.from_url(redis_url) as client:
        ids: Any = client.lrange(f"rq:queue:{queue}", 0, -1)
    return [rq_id.decode() for rq_id in ids]


def pushed_jobs(redis_url: str, queue: str = "default", *, namespace: str = NAMESPACE) -> list[int]:
    """Ids of our jobs in the Redis list of a queue, in the same order."""
    ours = (re.match(rf"{namespace}-(\d+)-", rq_id) for rq_id in pushed(redis_url, queue))
    return [int(match[1]) for match in ours if match]


def rq_workers(client: Redis, *, tracked: bool) -> list[Worker]:
    """The workers that RQ lists: those of tracked jobs, or those of plain ones."""
    listed: list[Any] = Worker.all(connection=client)
    return [worker for worker in listed if worker.name.endswith(".tracked") is tracked]


def only_rq_worker(client: Redis, *, tracked: bool) -> Worker:
    """The one that RQ lists, once it does."""
    (worker,) = wait_until(lambda: rq_workers(client, tracked=tracked), PATIENCE_SECONDS)
    return worker


def listening_rq_worker(client: Redis, *, tracked: bool) -> Worker:
    """The same, once it listens for RQ's commands: it is listed a moment before, and a command then is lost."""
    worker = only_rq_worker(client, tracked=tracked)
    channel = PUBSUB_CHANNEL_TEMPLATE % worker.name
    wait_until(lambda: client.pubsub_numsub(channel)[0][1], PATIENCE_SECONDS)
    return worker


@contextmanager
def leading(env: Mapping[str, str], *options: str) -> Iterator[Command]:
    """A `drain run` process that leads."""
    with drain_command("run", "--metrics-port", "0", *options, env=env) as command:
        wait_until(lambda: command.events("leading"), PATIENCE_SECONDS)
        yield command


def end(command: Command, number: int = signal.SIGTERM) -> int:
    """Send a signal, and return the exit code."""
    command.send_signal(number)
    return command.wait(PATIENCE_SECONDS)


def is_asleep(database_url: str) -> bool:
    """Whether the leader sleeps, which it lets those who stage know."""
    return bool(
        query(
            database_url,
            "SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted "
            "AND objid = 2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = 'drain run')",
        )
    )


def free_port() -> int:
    """A port below those that the system gives away, which another process may get before this one is used."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def ask(port: int, path: str) -> tuple[int, str]:
    """Status and text with which a process answers on its HTTP port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()

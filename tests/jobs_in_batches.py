"""Jobs that worker processes of the tests import, and which tests hold up and let go by a word."""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from drain.workers import (
    Dead,
    Defer,
    EventTimeoutError,
    Retry,
    async_psycopg_transaction,
    async_step_transaction,
    async_transaction,
    async_wait_for,
    current_job,
    job,
    sleep as nap,
    step_transaction,
    transaction,
    wait_for,
)
from tests.jobs_for_tests import _count, _leave, _wait_for, create_effects, effects, leave_effect

__all__ = ["_count", "_leave", "_wait_for", "create_effects", "effects", "leave_effect"]

MODULE = "tests.jobs_in_batches"
FOREVER_SECONDS = 600
SOON = 0.01
NAPS = 50

_LEAVE = "INSERT INTO effects (label, worker) VALUES (:label, :worker)"
_together = 0
_most_together = 0


@job(max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def note(label: str) -> None:
    _leave(label)


@job(max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def note_in_transaction(label: str) -> None:
    with transaction() as session:
        session.execute(sqlalchemy.text(_LEAVE), {"label": label, "worker": os.getpid()})


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def step_and_fail_once(label: str) -> None:
    """Leave the label in a step of the first attempt, which then fails."""
    step_transaction("write", _write, label)
    if current_job().attempt == 1:
        raise ConnectionError(label)


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
async def step_and_fail_once_in_loop(label: str) -> None:
    async def write(session: AsyncSession) -> None:
        await session.execute(sqlalchemy.text(_LEAVE), {"label": label, "worker": os.getpid()})

    await async_step_transaction("write", write)
    if current_job().attempt == 1:
        raise ConnectionError(label)


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON, isolated=True)
def step_and_fail_once_isolated(label: str) -> None:
    step_and_fail_once.function(label)


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON, commit="grouped")
def step_and_fail_once_grouped(label: str) -> None:
    step_and_fail_once.function(label)


@job(max_attempts=1)
def await_event(label: str) -> None:
    """Leave the label and the payload of the event of this name."""
    _leave(f"{label} {wait_for(label)}")


@job(max_attempts=1)
async def await_event_in_loop(label: str) -> None:
    _leave(f"{label} {await async_wait_for(label)}")


@job(max_attempts=1)
def wait_for_seconds(seconds: int) -> None:
    try:
        wait_for("what never comes", timeout=seconds)
    except EventTimeoutError:
        _leave("too late")


@job(max_attempts=1)
def sleep_for_seconds(seconds: int) -> None:
    nap(seconds)
    _leave("woke")


@job(max_attempts=1, isolated=True)
def await_event_isolated(label: str) -> None:
    await_event.function(label)


@job(max_attempts=1)
def nap_often(label: str) -> None:
    for _ in range(NAPS):
        nap(0)
    _leave(label)


@job(max_attempts=1)
def retry_step(label: str) -> None:
    """Leave the label in a step that fails once."""
    tries: list[str] = []

    def write(session: Session) -> None:
        _write(session, label)
        tries.append(label)
        if len(tries) == 1:
            raise ConnectionError(label)

    step_transaction.options(retries=1, backoff=SOON)("write", write)


@job(max_attempts=1)
async def retry_step_in_loop(label: str) -> None:
    tries: list[str] = []

    async def write(session: AsyncSession) -> None:
        await session.execute(sqlalchemy.text(_LEAVE), {"label": label, "worker": os.getpid()})
        tries.append(label)
        if len(tries) == 1:
            raise ConnectionError(label)

    await async_step_transaction.options(retries=1, backoff=SOON)("write", write)


@job(max_attempts=1, isolated=True)
def retry_step_isolated(label: str) -> None:
    retry_step.function(label)


def _write(session: Session, label: str) -> None:
    session.execute(sqlalchemy.text(_LEAVE), {"label": label, "worker": os.getpid()})


@job(max_attempts=1, commit="grouped")
def commit_and_wait(path: str) -> None:
    """Return once there is a file of this path, long after the commit."""
    note_in_transaction.function(path)
    deadline = time.monotonic() + 60
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)


@job(max_attempts=1, commit="grouped")
def commit_and_fail(label: str) -> None:
    note_in_transaction.function(label)
    raise ValueError(label)


@job(max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def wait_for_go(label: str) -> None:
    """Return once a test has said "go"."""
    _leave(label)
    _wait_for("go")


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def kill_the_process(label: object) -> None:
    _leave(str(label))
    os.kill(os.getpid(), signal.SIGKILL)


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def kill_the_process_once(label: str) -> None:
    if _leave(label) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@job(max_attempts=1)
def fail(label: str) -> None:
    raise ValueError(f"no {label}")


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def fail_first(label: str) -> None:
    """Fail once."""
    _leave(label)
    if _count(label) == 1:
        raise ValueError(f"no {label} yet")


@job(max_attempts=1, timeout_seconds=1)
def sleep_too_long(label: str) -> None:
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job(max_attempts=1, timeout_seconds=1)
def never_yield(label: str) -> None:
    """Hear no signal of the system's, as code in C that holds the interpreter."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job(max_attempts=1)
def sleep(label: str) -> None:
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job(isolated=True, max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def isolated(label: str) -> None:
    _leave(f"{label} of {os.getppid()}")


@job(isolated=True)
def isolated_imported(module: str) -> None:
    _leave(f"{module} {module in sys.modules}")


@job(isolated=True, max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def isolated_killer(label: str) -> None:
    _leave(label)
    os.kill(os.getpid(), signal.SIGKILL)


@job(isolated=True, max_attempts=1, timeout_seconds=1)
def isolated_sleeper(label: str) -> None:
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job(isolated=True, max_attempts=2, retry_base_seconds=FOREVER_SECONDS)
def isolated_waiter(label: str) -> None:
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job(isolated=True)
def isolated_wait_for_go(label: str) -> None:
    wait_for_go.function(label)


@job(isolated=True)
def isolated_in_transaction(label: str) -> None:
    note_in_transaction.function(label)


@job(lease_seconds=1.0, heartbeat_seconds=0.05)
def wait_for_file(path: str) -> None:
    """Make a file beside this one, and return once a test has made this one; no store is asked but by the heartbeat."""
    Path(f"{path}.{os.getpid()}").touch()
    deadline = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@job(max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def note_after_file(path: str) -> None:
    wait_for_file.function(path)
    note_in_transaction.function(path)


@job(max_attempts=1)
def only_once(label: str) -> None:
    wait_for_go.function(label)


@job(isolated=True, max_attempts=1)
def isolated_only_once(label: str) -> None:
    wait_for_go.function(label)


@job(isolated=True, max_attempts=1)
def isolated_never_yield(label: str) -> None:
    """Hear nothing of what the worker sends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job(isolated=True, max_attempts=1)
def isolated_exit(label: object) -> None:
    sys.exit(str(label))


@job(isolated=True, heartbeat_seconds=0.05)
def isolated_until_interrupted(label: str) -> None:
    until_interrupted.function(label)


@job(heartbeat_seconds=0.05)
def until_interrupted(label: str) -> None:
    _leave(label)
    try:
        time.sleep(FOREVER_SECONDS)
    except BaseException as error:
        _leave(f"{type(error).__name__} {current_job().cancelled}")
        raise


@job(heartbeat_seconds=0.05)
async def await_until_interrupted(label: str) -> None:
    _leave(label)
    try:
        await asyncio.sleep(FOREVER_SECONDS)
    except BaseException:
        _leave(f"{current_job().cancelled}")
        raise


@job
async def meet(expected: int) -> None:
    """Return once so many have begun, and note how many were there at most."""
    global _together, _most_together  # noqa: PLW0603
    _together += 1
    _most_together = max(_most_together, _together)
    deadline = time.monotonic() + 30
    while _most_together < expected:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {_most_together} came")
        await asyncio.sleep(0.01)
    # Whoever might come too many has the time to.
    await asyncio.sleep(0.05)
    _together -= 1
    leave_effect(os.environ["DRAIN_DATABASE_URL"], f"{_most_together} together")


@job
async def meet_in_transaction(expected: int) -> None:
    """Return once so many have their transactions open."""
    async with async_transaction() as session:
        await session.execute(sqlalchemy.text(_LEAVE), {"label": "met", "worker": os.getpid()})
        await _meet(expected)


@job
async def meet_in_psycopg_transaction(expected: int) -> None:
    async with async_psycopg_transaction() as connection:
        await connection.execute("INSERT INTO effects (label, worker) VALUES ('met', %s)", (os.getpid(),))
        await _meet(expected)


async def _meet(expected: int) -> None:
    global _together, _most_together  # noqa: PLW0603
    _together += 1
    _most_together = max(_most_together, _together)
    async with asyncio.timeout(30):
        while _most_together < expected:
            await asyncio.sleep(0.01)
    _together -= 1


@job(max_attempts=1, commit="grouped")
async def commit_grouped_in_the_loop(label: str) -> None:
    async with async_transaction() as session:
        await session.execute(sqlalchemy.text(_LEAVE), {"label": label, "worker": os.getpid()})


@job
def meet_in_threads(expected: int) -> None:
    """As `meet`, and leave the name of the thread too."""
    global _together, _most_together  # noqa: PLW0603
    with _meeting:
        _together += 1
        _most_together = max(_most_together, _together)
    deadline = time.monotonic() + 30
    while _most_together < expected:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {_most_together} came")
        time.sleep(0.01)
    time.sleep(0.05)
    with _meeting:
        _together -= 1
    name = threading.current_thread().name
    leave_effect(os.environ["DRAIN_DATABASE_URL"], f"{_most_together} together, {name.rstrip('0123456789')}")


_meeting = threading.Lock()


@job(max_attempts=1, timeout_seconds=1)
def nap_too_long(label: str) -> None:
    """Sleep for ever, but wake every 10 ms."""
    nap_for_ever.function(label)


@job(max_attempts=2, retry_base_seconds=FOREVER_SECONDS, lease_seconds=1.0, heartbeat_seconds=0.05)
def nap_for_ever(label: str) -> None:
    _leave(label)
    while True:
        time.sleep(0.01)


@job
async def tell_who_runs(label: str) -> None:
    """Leave what the context says before and after others have run."""
    before = current_job().id
    await asyncio.sleep(0.01)
    leave_effect(
        os.environ["DRAIN_DATABASE_URL"],
        f"{label} {before == current_job().id} {threading.current_thread().name}",
    )


@job(max_attempts=1, timeout_seconds=1)
async def await_too_long(label: str) -> None:
    _leave(label)
    await asyncio.sleep(FOREVER_SECONDS)


@job(max_attempts=2, retry_base_seconds=FOREVER_SECONDS)
async def await_for_ever(label: str) -> None:
    _leave(label)
    await asyncio.sleep(FOREVER_SECONDS)


@job(max_attempts=2, lease_seconds=1.0, heartbeat_seconds=0.05)
async def hold_a_short_lease(label: str) -> None:
    _leave(label)
    await asyncio.sleep(FOREVER_SECONDS)


@job(max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
async def fail_once(label: str) -> None:
    await asyncio.sleep(0)
    if _leave(label) == 1:
        raise ValueError("not yet")


@job(max_attempts=1)
async def raise_exit(label: str) -> None:
    raise SystemExit(label)


@job(max_attempts=1, timeout_seconds=1)
async def block_the_loop(label: str) -> None:
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job
async def settle_together(label: str) -> None:
    """Hold a transaction open while others hold theirs."""
    with transaction() as session:
        session.execute(sqlalchemy.text(_LEAVE), {"label": label, "worker": os.getpid()})
        deadline = time.monotonic() + 30
        while not _count("go"):
            if time.monotonic() > deadline:
                raise TimeoutError("nobody says go")
            await asyncio.sleep(0.01)


@job
def settle_in_threads(label: str) -> None:
    """As `settle_together`, and leave the process id of the server's session."""
    with transaction() as session:
        session.execute(
            sqlalchemy.text("INSERT INTO effects (label, worker) VALUES (:label, pg_backend_pid())"),
            {"label": label},
        )
        _wait_for(label.partition(" ")[0])


@job
def take_memory(megabytes: int) -> None:
    """Keep so much for the life of the process."""
    _kept.append(bytearray(os.urandom(1) * megabytes * 2**20))


_kept: list[bytearray] = []


@job(max_attempts=1)
def leave_at_once(code: int) -> None:
    os._exit(code)


@job(isolated=True, max_attempts=1)
def isolated_leave_at_once(code: int) -> None:
    os._exit(code)


@job
def fork_and_exit(label: str) -> None:
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    _leave(label)


@job
def fork_and_return(label: str) -> None:
    if os.fork() == 0:
        return
    os.wait()
    _leave(label)


@job
async def fork_and_return_async(label: str) -> None:
    if os.fork() == 0:
        return
    os.wait()
    _leave(label)


@job
def terminate_a_child(label: str) -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_SECONDS,))
    child.start()
    child.terminate()
    child.join(30)
    leave_effect(os.environ["DRAIN_DATABASE_URL"], f"{label}: {child.exitcode}")


@job(isolated=True)
def terminate_a_child_isolated(label: str) -> None:
    terminate_a_child.function(label)


@job(max_attempts=1)
def put_off(label: str) -> None:
    raise Defer(3600)


def _ask_again(label: str) -> None:
    """Fail each time; the registration alone would let the job wait for longer than any test."""
    _leave(label)
    try:
        raise OSError("the bank is down")
    except OSError as error:
        raise Retry(after=SOON, reason=label) from error


@job(max_attempts=2, retry_base_seconds=FOREVER_SECONDS)
def ask_again(label: str) -> None:
    _ask_again(label)


@job(max_attempts=2, retry_base_seconds=FOREVER_SECONDS)
async def ask_again_in_loop(label: str) -> None:
    _ask_again(label)


@job(isolated=True, max_attempts=2, retry_base_seconds=FOREVER_SECONDS)
def ask_again_isolated(label: str) -> None:
    _ask_again(label)


@job(max_attempts=1)
def give_up(label: str) -> None:
    raise Dead("it is no use")


@job(isolated=True, max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def isolated_pid(label: str) -> None:
    """Leave the id of the process, and wait for the word."""
    _leave(str(os.getpid()))
    _wait_for("go")


@job
def leave_an_alarm(label: str) -> None:
    def ring(*_: object) -> None:
        raise ValueError("long after the job")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(1)


def plain_killer() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plain(label: str) -> str:
    """For RQ, as other code enqueues it."""
    _leave(label)
    return f"done {label}"


def plain_failure(label: str) -> None:
    raise ValueError(f"no {label}")


def plain_sleep(label: str) -> None:
    _leave(label)
    time.sleep(FOREVER_SECONDS)

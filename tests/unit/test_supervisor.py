"""The process that keeps worker processes running."""

import os
import signal

import pytest

from drain.config import Settings
from drain.workers.exits import DONE
from drain.workers.options import WorkOptions
from drain.workers.supervisor import supervisor as supervisor_module
from drain.workers.supervisor.reaper import Reaper
from drain.workers.supervisor.slot import WorkerSlot
from drain.workers.supervisor.supervisor import Supervisor
from tests.helpers import wait_until


def wait_for_ever() -> int:
    while True:
        signal.pause()


def test_a_process_forked_while_a_signal_arrives_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that the job modules have started may take the signal, though the main thread holds it back."""
    supervisor = Supervisor(Settings(database_url="postgresql://nowhere"), WorkOptions(queues=["default"]))
    (slot,) = supervisor._slots
    fork = os.fork
    forked: list[int] = []

    def fork_as_a_signal_comes() -> int:
        pid = fork()
        if pid:
            forked.append(pid)
            supervisor._handle_signal(signal.SIGTERM, None)
        return pid

    monkeypatch.setattr(os, "fork", fork_as_a_signal_comes)
    assert supervisor._fork(slot, wait_for_ever)
    (pid,) = forked
    statuses: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        statuses.extend([status] if found else [])
        return bool(found)

    try:
        wait_until(has_ended)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    # No job was claimed: it has ended well.
    assert os.waitstatus_to_exitcode(statuses[0]) == DONE


def test_an_abandoned_slot_does_not_keep_a_stopping_supervisor_spinning() -> None:
    supervisor = Supervisor(Settings(database_url="postgresql://nowhere"), WorkOptions(queues=["default"]))
    assert supervisor._pause() == 0
    supervisor._handle_signal(signal.SIGTERM, None)
    assert supervisor._pause() == supervisor_module._LOOK_SECONDS


def test_no_process_is_forked_once_a_stop_signal_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(Settings(database_url="postgresql://nowhere"), WorkOptions(queues=["default"]))
    (slot,) = supervisor._slots
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process was forked"))
    supervisor._handle_signal(signal.SIGTERM, None)
    assert not supervisor._fork(slot, wait_for_ever)


@pytest.mark.parametrize("resigned", [True, False], ids=["resigned", "exited by a job"])
def test_a_process_that_exits_with_0_is_replaced_unless_it_has_resigned(resigned: bool) -> None:
    slot = WorkerSlot(1, "worker")
    slot.fill(os.posix_spawnp("true", ["true"], os.environ))
    slot.journal.resigned = resigned
    reaper = Reaper([slot], burst=False)

    def has_ended() -> bool:
        reaper.reap(stopping=False)
        return not slot.pid

    wait_until(has_ended)
    assert slot.is_retired == resigned

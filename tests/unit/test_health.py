"""What `drain work` says of its health, and the channel to the RQ process."""

import os
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from drain.contrib.plain.channel import Channel
from drain.service.hysteresis import HealthOptions
from drain.workers.supervisor import health
from drain.workers.supervisor.health import Health


def test_health_requires_a_turning_loop_and_a_live_worker_that_reaches_its_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(health, "monotonic", lambda: clock[0])
    journal: Any = SimpleNamespace(is_alive=True, is_cut_off=True)
    state = Health([journal], HealthOptions(grace_seconds=10, recovery_seconds=5))

    def turn(seconds: float = 0.0) -> str | None:
        clock[0] += seconds
        state.report_turn(stopping=False)
        return state.unready()

    away = "no worker process reaches both PostgreSQL and Redis"
    assert turn() == away
    journal.is_cut_off = False
    assert (turn(), state.unhealthy()) == (None, None)
    assert turn(20) is None
    # From now on there is a grace, and a time of recovery.
    journal.is_cut_off = True
    assert [turn(), turn(9), turn(2)] == [None, None, away]
    journal.is_cut_off = False
    assert [turn(), turn(4), turn(2)] == [away, away, None]
    clock[0] += 31
    assert str(state.unhealthy()).startswith("the supervisor has not responded for ")
    journal.is_alive = False
    state.report_turn(stopping=False)
    assert str(state.unhealthy()).startswith("no worker process has been alive for ")


def test_a_channel_ends_with_its_process_despite_forked_children() -> None:
    ours, theirs = socket.socketpair()
    channel, other = Channel(ours), Channel(theirs)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        channel.close()
        with pytest.raises(EOFError):
            # Far longer than it takes.
            assert other.receive(10) is not None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        other.close()

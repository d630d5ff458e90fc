"""The process of plain RQ jobs, and signals that come while RQ's worker is ending."""

from typing import Any

import pytest
from rq.exceptions import StopRequested

from drain.contrib.plain import rq_process
from drain.contrib.plain.channel import BYE
from drain.workers.exits import DONE
from drain.workers.options import WorkOptions


class EndingWorker:
    """RQ's worker, to which a signal comes in the middle of its last words to Redis."""

    def __init__(self, *, has_ended: bool) -> None:
        self.has_ended = has_ended
        self.is_shut_down = True

    def work(self, **_: object) -> None:
        raise StopRequested


class Listener:
    """The worker process, at the other end of the channel."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def send(self, word: object) -> None:
        self.heard.append(word)


@pytest.mark.parametrize(("has_ended", "heard"), [(True, []), (False, [BYE])], ids=["told to end", "by RQ"])
def test_a_signal_while_rqs_worker_ends_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, has_ended: bool, heard: list[object]
) -> None:
    monkeypatch.setattr(rq_process, "_make", lambda *_: EndingWorker(has_ended=has_ended))
    channel: Any = Listener()
    options = WorkOptions(queues=("mail",))
    assert rq_process._work(channel, "redis://", ["mail"], options, "a name") == DONE
    assert channel.heard == heard

"""The thread of a worker process that listens for RQ's commands."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from workers.plain import rq_commands
from workers.process import rq_worker


@pytest.mark.parametrize(
    "error", [redis.TimeoutError("late"), redis.ResponseError("NOPERM"), ValueError("no")]
)
def test_the_worker_listens_again_whatever_it_heard(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rq_commands, "_LISTEN_AGAIN_SECONDS", 0.0)
    broken_off: list[bool] = []
    pubsub = SimpleNamespace(connection=SimpleNamespace(disconnect=lambda: broken_off.append(True)))
    worker: Any = SimpleNamespace(log=logging.getLogger("tests.rq"), name="one")

    rq_worker.RQWorker._pubsub_exception_handler(worker, error, pubsub, None)

    assert broken_off == [True]
    assert "cannot be received" in caplog.text

"""RQ's commands; no message ends the listening thread."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import redis
from rq.command import handle_command
from rq.utils import now, utcformat
from rq.worker import BaseWorker

_LISTEN_AGAIN_SECONDS = 2.0


class CommandListener(BaseWorker):
    """Listening part of RQ's worker.

    Attributes:
        is_shutdown_commanded: RQ signals the process next.
    """

    is_shutdown_commanded = False
    commands: tuple[str, ...] = ("shutdown", "kill-horse", "stop-job", "stop-execution")

    def handle_payload(self, message: Mapping[str, Any]) -> None:
        """Obey `commands`; log and ignore anything else."""
        try:
            payload = json.loads(message["data"])
            command = payload["command"]
            if command not in self.commands:
                raise ValueError(f"the command is not one of {', '.join(self.commands)}")
        # Any Redis client may publish anything.
        except Exception as error:  # noqa: BLE001
            self.log.warning("Worker %s: an RQ command cannot be read: %.300r", self.name, error)
            return
        self.obey(payload)

    def obey(self, payload: dict[str, Any]) -> None:
        """Obey a command as RQ does."""
        self.is_shutdown_commanded |= payload["command"] == "shutdown"
        try:
            handle_command(self, payload)
        # Such as a command without a job id.
        except Exception as error:
            if isinstance(error, redis.RedisError):
                raise
            self.log.warning("Worker %s: an RQ command failed: %.300r", self.name, error)

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Listen again after any error; RQ does so only after a lost connection."""
        if isinstance(exc, redis.ConnectionError):
            super()._pubsub_exception_handler(exc, pubsub, pubsub_thread)
            return
        self.log.warning("Worker %s: RQ commands cannot be received; retrying: %r", self.name, exc)
        with suppress(Exception):
            pubsub.connection.disconnect()
        time.sleep(_LISTEN_AGAIN_SECONDS)


def replace_at_birth(worker: BaseWorker) -> None:
    """Let `register_birth` replace the hash of a dead worker of the same name.

    If the hash were deleted first, a concurrent reader could remove the new worker from RQ's set.
    """
    if worker.connection.exists(worker.key):
        worker.connection.hset(worker.key, "death", utcformat(now()))


def tracked_name(name: str) -> str:
    """Return the name of the worker of tracked jobs."""
    return f"{name}.tracked"

"""Commands that RQ's tools publish to a worker; no message of any client ends the thread that listens."""

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

# Pause after a failure, before the thread listens again.
_LISTEN_AGAIN_SECONDS = 2.0


class CommandListener(BaseWorker):
    """The part of RQ's worker that listens for commands.

    Attributes:
        is_shutdown_commanded: RQ's shutdown command has come; RQ sends the process a signal then.
        commands: Commands that are obeyed.
    """

    is_shutdown_commanded = False
    commands: tuple[str, ...] = ("shutdown", "kill-horse", "stop-job", "stop-execution")

    def handle_payload(self, message: Mapping[str, Any]) -> None:
        """Obey `commands`; log and ignore any other message."""
        try:
            payload = json.loads(message["data"])
            command = payload["command"]
            if command not in self.commands:
                raise ValueError(f"the command is none of {', '.join(self.commands)}")
        # Any client of Redis may publish anything, and an exception would end the thread that listens.
        except Exception as error:  # noqa: BLE001
            self.log.warning("Worker %s: a command of RQ's cannot be read: %.300r", self.name, error)
            return
        self.obey(payload)

    def obey(self, payload: dict[str, Any]) -> None:
        """Obey a command as RQ does."""
        self.is_shutdown_commanded |= payload["command"] == "shutdown"
        try:
            handle_command(self, payload)
        # For example, a command lacks the id of its job.
        except Exception as error:
            if isinstance(error, redis.RedisError):
                raise
            self.log.warning("Worker %s: a command of RQ's failed: %.300r", self.name, error)

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Listen again after any error; RQ itself listens again only after a lost connection."""
        if isinstance(exc, redis.ConnectionError):
            super()._pubsub_exception_handler(exc, pubsub, pubsub_thread)
            return
        self.log.warning("Worker %s: RQ's commands cannot be received, trying again: %r", self.name, exc)
        with suppress(Exception):
            pubsub.connection.disconnect()
        time.sleep(_LISTEN_AGAIN_SECONDS)


def replace_at_birth(worker: BaseWorker) -> None:
    """Let `register_birth` replace the hash of a dead worker of the same name.

    Deleting the hash first would let a concurrent reader remove the new worker from RQ's set.
    """
    if worker.connection.exists(worker.key):
        worker.connection.hset(worker.key, "death", utcformat(now()))


def tracked_name(name: str) -> str:
    """Name of the other worker of the same process that RQ's tools show: the one of tracked jobs."""
    return f"{name}.tracked"

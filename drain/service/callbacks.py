"""Calls of health hooks and commands; failures are only logged."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import threading
from contextlib import suppress

from drain import health
from drain.health import HealthChange
from drain.service.hysteresis import HealthOptions

log = logging.getLogger(__name__)

HOOK_SECONDS = 30.0
COMMAND_SECONDS = 30.0
# Changes that wait for hooks.
MOST_WAITING = 100
# Threads whose hooks hang.
_MOST_LEFT = 10


def any_for(options: HealthOptions) -> bool:
    """Return True if any hook or command is configured."""
    return bool(
        health.unhealthy_hooks or health.recovery_hooks or options.on_unhealthy or options.on_recovery
    )


def call_hooks(change: HealthChange) -> None:
    """Call the hooks in order."""
    for hook in health.recovery_hooks if change.is_recovery else health.unhealthy_hooks:
        try:
            hook(change)
        except BaseException as error:  # noqa: BLE001
            name = getattr(hook, "__qualname__", repr(hook))
            log.error(
                "the hook %s failed: %s: %s",
                name,
                type(error).__name__,
                error,
                extra={"event": "health_hook_failed"},
            )


def run_command(change: HealthChange, options: HealthOptions) -> None:
    """Run the shell command, with a timeout."""
    command = options.on_recovery if change.is_recovery else options.on_unhealthy
    if not command:
        return
    variables = {f"DRAIN_HEALTH_{name.upper()}": text for name, text in change.as_texts().items()}
    try:
        with subprocess.Popen(  # noqa: S602
            command,
            shell=True,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            problem = _wait_for(process)
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        log.error("the health command %s", problem, extra={"event": "health_hook_failed"})


def _wait_for(process: subprocess.Popen[bytes]) -> str | None:
    try:
        code = process.wait(COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        # The shell and its children.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return f"did not end within {COMMAND_SECONDS:g} s and was killed"
    return f"ended with exit code {code}" if code else None


class Callbacks:
    """Thread that calls hooks and commands, one change at a time."""

    def __init__(self, options: HealthOptions) -> None:
        self._options = options
        self._waiting: queue.Queue[HealthChange] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._left: list[threading.Thread] = []

    def call(self, change: HealthChange) -> None:
        """Queue this change; return at once."""
        if not any_for(self._options):
            return
        try:
            self._waiting.put_nowait(change)
        except queue.Full:
            self._log_left_out(change)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="health hooks", daemon=True)
            # Too many threads: the next change tries again.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            self._call(self._waiting.get())

    def _call(self, change: HealthChange) -> None:
        self._left = [thread for thread in self._left if thread.is_alive()]
        run_command(change, self._options)
        if len(self._left) >= _MOST_LEFT:
            self._log_left_out(change)
            return
        # Threads cannot be killed.
        thread = threading.Thread(target=call_hooks, args=[change], name="health hook", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._log_left_out(change)
            return
        thread.join(HOOK_SECONDS)
        if thread.is_alive():
            self._left.append(thread)
            log.error(
                "health hooks did not end within %g s and are left behind",
                HOOK_SECONDS,
                extra={"event": "health_hook_failed"},
            )

    @staticmethod
    def _log_left_out(change: HealthChange) -> None:
        log.error(
            "no health hook is called for %s: earlier calls hang",
            change.what,
            extra={"event": "health_hook_failed"},
        )

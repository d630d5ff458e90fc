"""Progress of this process' attempts, sent to Redis by a thread at most twice a second.

A report writes one attribute of the attempt. The thread, started by the first, writes changes of all attempts in one
command; a stalled Redis delays neither leases nor outcomes. Attempts shorter than half a second are never written;
others are deleted at their end, or expire with the process.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from drain.tables.claims import Claim
from drain.workers.context.report import Report

if TYPE_CHECKING:
    from redis import Redis

    from drain.wire.progress import ProgressBoard, Written

log = logging.getLogger(__name__)

# Between writes, and after a failed one.
EVERY_SECONDS = 0.5
_PAUSE_SECONDS = 5.0
# Unchanged progress is rewritten after a third of its lifetime in Redis.
_AGAIN_SECONDS = 10.0
_LONGEST_TEXT = 200
# For Redis at the end of the process.
_PATIENCE_SECONDS = 0.5


class Reporting(Protocol):
    """Attempt that reports progress."""

    claim: Claim
    progress: Report | None
    has_ended: bool


class _Sent(NamedTuple):
    report: Report | None
    text: str
    again_at: float


class Reporter:
    """Sends progress to Redis; its thread connects."""

    def __init__(self, open_board: Callable[[], ProgressBoard]) -> None:
        self._open_board = open_board
        self._board: ProgressBoard | None = None
        self._followed: set[Reporting] = set()
        # Values that Redis has, or may have.
        self._sent: dict[Reporting, _Sent] = {}
        # One per attempt. An Event's lock could stay locked when a job is interrupted in `follow`.
        self._notices: SimpleQueue[None] = SimpleQueue()
        self._hurry = threading.Event()
        # Redis has nothing of this process.
        self._is_clear = threading.Event()
        self._is_clear.set()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_warned = False

    def follow(self, attempt: Reporting) -> None:
        """Send an attempt's reports until it ends."""
        self._followed.add(attempt)
        self._notices.put(None)
        # Not awaited: another job is starting the thread.
        if self._thread is None and self._starting.acquire(blocking=False):
            try:
                self._start()
            finally:
                self._starting.release()

    def flush(self) -> None:
        """Delete progress of ended attempts, waiting half a second at most."""
        if not self._is_clear.is_set():
            self._hurry.set()
            self._is_clear.wait(_PATIENCE_SECONDS)

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="progress", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The next attempt that reports tries again.
            log.debug(
                "progress is not reported, as no thread can be started: %s",
                error,
                extra={"event": "progress_unseen"},
            )
        else:
            self._thread = thread

    def _run(self) -> None:
        while True:
            self._notices.get()
            while self._followed:
                self._hurry.wait(EVERY_SECONDS)
                self._hurry.clear()
                if not self._carry():
                    self._hurry.wait(_PAUSE_SECONDS)

    def _carry(self) -> bool:
        """Return False if Redis did not take the changes."""
        self._forget_notices()
        changed = self._changes()
        if not changed:
            return True
        try:
            if self._board is None:
                self._board = self._open_board()
            self._board.write(changed)
        # Progress must fail neither a job nor this thread.
        except Exception as error:  # noqa: BLE001
            self._note_failure(error)
            return False
        finally:
            # Anything left expires.
            if not self._sent:
                self._is_clear.set()
        self._has_warned = False
        return True

    def _forget_notices(self) -> None:
        try:
            while True:
                self._notices.get_nowait()
        except Empty:
            return

    def _changes(self) -> list[Written]:
        from drain.wire.progress import Written

        now, changed = monotonic(), []
        for attempt in list(self._followed):
            claim, sent = attempt.claim, self._sent.get(attempt)
            if attempt.has_ended:
                self._followed.discard(attempt)
                if self._sent.pop(attempt, None) is not None:
                    changed.append(Written(claim.id, claim.fencing_token, ""))
                continue
            report = attempt.progress
            if sent is None or sent.report != report:
                sent = _Sent(report, _text(claim, report), now + _AGAIN_SECONDS)
            elif now >= sent.again_at:
                sent = sent._replace(again_at=now + _AGAIN_SECONDS)
            else:
                continue
            self._is_clear.clear()
            self._sent[attempt] = sent
            changed.append(Written(claim.id, claim.fencing_token, sent.text))
        return changed

    def _note_failure(self, error: Exception) -> None:
        for attempt, sent in self._sent.items():
            self._sent[attempt] = sent._replace(report=None)
        if not self._has_warned:
            log.warning("job progress is not reported: %s", error, extra={"event": "progress_unseen"})
        self._has_warned = True


def _text(claim: Claim, report: Report | None) -> str:
    done, total, text = report or (0, None, None)
    found = {
        "token": claim.fencing_token,
        "attempt": claim.attempts,
        "done": done,
        "total": total,
        "text": text and text[:_LONGEST_TEXT],
        "at": round(time(), 3),
    }
    return json.dumps({name: value for name, value in found.items() if value is not None})


_open: Callable[[], ProgressBoard] | None = None
_reporter: Reporter | None = None


def report_to(redis_url: str, namespace: str, client: Redis | None = None) -> None:
    """Send this process' progress to Redis, connecting at the first report.

    Args:
        client: RQ's connection, if there is no URL.
    """
    global _open  # noqa: PLW0603
    _open = partial(_open_board, redis_url, namespace, client) if redis_url or client is not None else None
    report_as_parent()


def report_as_parent() -> None:
    """Let a process forked for one job report as its parent."""
    global _reporter  # noqa: PLW0603
    _reporter = None if _open is None else Reporter(_open)


def follow(attempt: Reporting) -> None:
    """Send an attempt's reports, if this process has a Redis."""
    if _reporter is not None:
        _reporter.follow(attempt)


def flush() -> None:
    """Flush the reporter, if any."""
    if _reporter is not None:
        _reporter.flush()


def _open_board(redis_url: str, namespace: str, client: Redis | None) -> ProgressBoard:
    from drain.wire import ProgressBoard

    if redis_url or client is None:
        return ProgressBoard.at(redis_url, namespace)
    return ProgressBoard(client, "the address of RQ's worker", namespace)


def _forget() -> None:
    global _reporter  # noqa: PLW0603
    _reporter = None


# A forked child lacks the thread, and must not share the connection.
os.register_at_fork(after_in_child=_forget)

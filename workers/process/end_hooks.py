"""Thread that calls hooks of ended jobs, to delay no outcome."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

from drain.workers.context.current import Attempt
from drain.workers.execution import completion_hooks

log = logging.getLogger(__name__)

# Further hooks are skipped.
_MOST_WAITING = 10_000
# For the last hooks.
_LAST_SECONDS = 5.0


class EndHooks:
    """Calls hooks in order; its thread starts on demand."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Attempt, str | None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_late = False

    def add(self, attempt: Attempt, reason: str | None = None) -> None:
        """Queue an ended job's hooks; see `completion_hooks.call`."""
        if self._queue.qsize() >= _MOST_WAITING:
            if not self._is_late:
                log.warning(
                    "on_finish and on_dead hooks are slower than jobs end; some are not called",
                    extra={"event": "hooks_left_out"},
                )
            self._is_late = True
            return
        self._is_late = False
        self._queue.put((attempt, reason))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait briefly for pending hooks."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            completion_hooks.call(*item)

"""Retries and discards of many dead jobs, in slices, each one transaction.

They end with this process. Finished slices stay done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import psycopg

from drain import formatting
from drain.contrib.web.sessions import Sessions
from drain.contrib.web.tokens import nonce
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.formatting import visible

log = logging.getLogger(__name__)

# Jobs per transaction: short locks, and a Cancel that soon takes effect.
SLICE = 250
# Actions remembered, and running at a time.
MOST, MOST_RUNNING = 20, 4

RUNNING, COMPLETED, CANCELLED, FAILED = "running", "completed", "cancelled", "failed"

# Called with a slice of ids and the number of jobs done before; returns how many of them were dead.
Act = Callable[[Connection, Sequence[int], int], int]


@dataclass
class BulkAction:
    """One retry or discard; only its own thread changes the numbers.

    Attributes:
        words: The jobs, such as `dead jobs of shop.jobs.send`.
        looked_at: Ids whose slice is committed.
        done: Jobs retried or discarded; the others were no longer dead, or had died again.
        error: Reason of `failed`, in one line.
    """

    name: str
    verb: str
    group: str
    words: str
    who: str
    jobs: int
    state: str = RUNNING
    looked_at: int = 0
    done: int = 0
    error: str = ""
    stop: threading.Event = field(default_factory=threading.Event, repr=False)
    begun: float = field(default_factory=monotonic, repr=False)
    ended: float | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        """Duration so far."""
        return (self.ended or monotonic()) - self.begun

    @property
    def per_second(self) -> float:
        """Ids handled per second."""
        return self.looked_at / self.seconds if self.seconds else 0.0

    @property
    def others(self) -> int:
        """Jobs left out of finished slices."""
        return self.looked_at - self.done


class BulkActions:
    """The latest actions, one at a time per group. Thread-safe."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._actions: dict[str, BulkAction] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._is_closed = False

    def start(self, verb: str, group: str, words: str, who: str, ids: Sequence[int], act: Act) -> BulkAction:
        """Start an action in a thread.

        Raises:
            DrainError: One of the same group is running, or too many are.
        """
        action = BulkAction(nonce(), verb, group, words, who, len(ids))
        # Only the thread holds the ids, so that they go when it ends.
        given = (action, ids, act)
        thread = threading.Thread(target=self._run, args=given, name=f"drain web {verb}", daemon=True)
        with self._lock:
            running = [each for each in self._actions.values() if each.state == RUNNING]
            same = next((each for each in running if each.group == group), None)
            if same is not None:
                raise DrainError(f"a {same.verb} of this group is running; cancel it or wait for it to end")
            if self._is_closed or len(running) >= MOST_RUNNING:
                raise DrainError(f"{MOST_RUNNING} bulk actions are running; wait for one to end")
            thread.start()
            self._forget_oldest()
            self._actions[action.name] = action
            self._threads[action.name] = thread
        return action

    def _forget_oldest(self) -> None:
        ended = [name for name, each in self._actions.items() if each.state != RUNNING]
        for name in ended[: max(0, len(self._actions) - MOST + 1)]:
            del self._actions[name], self._threads[name]

    def find(self, name: str) -> BulkAction | None:
        """Return a remembered action."""
        with self._lock:
            return self._actions.get(name)

    def latest(self) -> list[BulkAction]:
        """Return all, latest first."""
        with self._lock:
            return list(self._actions.values())[::-1]

    def close(self) -> None:
        """Cancel all and wait for their current slice."""
        with self._lock:
            self._is_closed = True
            for action in self._actions.values():
                action.stop.set()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join()

    def _run(self, action: BulkAction, ids: Sequence[int], act: Act) -> None:
        state = FAILED
        try:
            state = self._act_on_slices(action, ids, act)
        except DrainError as error:
            action.error = visible(str(error))
        except Exception as error:
            log.exception("a bulk action failed", extra={"event": "web_failed"})
            reason = error.diag.message_primary if isinstance(error, psycopg.Error) else None
            action.error = visible(reason or f"{type(error).__name__}; the log has the reason")
        action.ended = monotonic()
        action.state = state
        verb, who = f"dead_{action.verb}", action.who
        details = {"action": verb, "who": who, "given": {"group": action.group}, "jobs": action.done}
        text = f"{action.done:,} of {formatting.count(action.jobs, 'job')}"
        log.info("%s: %s, %s, by %s", verb, state, text, who, extra={"event": "web_write", **details})

    def _act_on_slices(self, action: BulkAction, ids: Sequence[int], act: Act) -> str:
        while action.looked_at < action.jobs:
            if action.stop.is_set():
                return CANCELLED
            some = ids[action.looked_at : action.looked_at + SLICE]
            with self._sessions.writing() as connection:
                number = act(connection, some, action.done)
            action.done += number
            action.looked_at += len(some)
        return COMPLETED

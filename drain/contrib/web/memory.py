"""Cache of answers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Memory:
    """Caches answers; concurrent callers wait for one computation. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._locks: dict[str, Lock] = {}
        self._answers: dict[str, tuple[float, Any]] = {}

    def recall(self, name: str, seconds: float, ask: Callable[[], T]) -> T:
        """Return the cached answer, or compute it if older than `seconds`."""
        with self._lock:
            lock = self._locks.setdefault(name, Lock())
        with lock:
            since, answer = self._answers.get(name, (float("-inf"), None))
            if monotonic() - since >= seconds:
                answer = ask()
                self._answers[name] = monotonic(), answer
            return cast(T, answer)

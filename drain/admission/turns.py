"""Turns: which key with waiting jobs is next.

*Fair* is start-time fair queueing: a key's tag is the virtual time of its next turn; the lowest is served and rises by
1 / weight. A key enters at the virtual time of the one being served, or where its own last turn ended: idle or blocked
time gives no credit. *By place*, the tag is the place of the key's next job.

A selection takes turns before its transaction commits, so turns since `mark` can be undone.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

# Ended turns, before irrelevant ones are dropped.
_MOST_ENDED = 10_000


class Turns:
    """Keys by tag, in `waiting`; unnamed keys weigh 1."""

    def __init__(self, *, fair: bool = False, weights: Mapping[str, int | float] | None = None) -> None:
        self.fair = fair
        self.waiting: dict[str, Any] = {}
        self._weights = dict(weights or {})
        # (tag, key); valid only while `waiting` has the same tag.
        self._heap: list[tuple[Any, str]] = []
        self._now = 0.0
        # Ends of the last turns of keys outside the order.
        self._ended: dict[str, float] = {}
        # State before the selection; None for keys outside the order.
        self._before: dict[str, Any] | None = None
        self._now_before = 0.0

    def go_on_from(self, earlier: Turns) -> None:
        """Continue earlier turns."""
        if self.fair and earlier.fair:
            self._now = earlier._now
            self._ended = {**earlier._ended, **earlier.waiting}

    def enter(self, key: str, place: Any) -> None:
        """Put a key into the order; by place, it may move up."""
        tag = self.waiting.get(key)
        if not self.fair:
            if tag is None or place < tag:
                self._set(key, place)
        elif tag is None:
            self._set(key, max(self._now, self._ended.get(key, 0.0)))

    def leave(self, key: str) -> None:
        """Remove an empty or blocked key."""
        tag = self.waiting.get(key)
        if tag is not None:
            self._note(key)
            del self.waiting[key]
            self._end(key, tag)

    def first(self) -> str | None:
        """Next key, if any."""
        heap = self._heap
        while heap and self.waiting.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def following(self, most: int) -> list[str]:
        """First keys in order."""
        heap = self._heap
        # A key has two equal entries if its tag left and came back.
        tags: dict[str, Any] = {}
        while heap and len(tags) < most:
            tag, key = heapq.heappop(heap)
            if self.waiting.get(key) == tag:
                tags[key] = tag
        for key, tag in tags.items():
            heapq.heappush(heap, (tag, key))
        return list(tags)

    def served(self, key: str, following: Any) -> None:
        """End a key's turn after taking a job; `following` bounds the next one's place."""
        tag = self.waiting[key]
        if self.fair:
            self._now = max(self._now, tag)
            self._set(key, tag + 1 / self._weights.get(key, 1))
        else:
            self._set(key, following)

    def postpone(self, key: str, place: Any) -> None:
        """Move a key to the later place of its next job."""
        self._set(key, place)

    def mark(self) -> None:
        """Begin a selection, undoable until the next mark."""
        self._before = {}
        self._now_before = self._now
        if len(self._heap) > 2 * len(self.waiting) + 1000:
            self._heap = [(tag, key) for key, tag in self.waiting.items()]
            heapq.heapify(self._heap)
        if len(self._ended) > _MOST_ENDED:
            self._ended = {key: end for key, end in self._ended.items() if end > self._now}

    def undo(self) -> None:
        """Undo the turns since the mark."""
        before, self._before = self._before, None
        for key, tag in (before or {}).items():
            if tag is None:
                self.waiting.pop(key, None)
            else:
                self._set(key, tag)
        if before is not None:
            self._now = self._now_before

    def _set(self, key: str, tag: Any) -> None:
        self._note(key)
        self._ended.pop(key, None)
        self.waiting[key] = tag
        heapq.heappush(self._heap, (tag, key))

    def _note(self, key: str) -> None:
        if self._before is not None and key not in self._before:
            self._before[key] = self.waiting.get(key)

    def _end(self, key: str, tag: Any) -> None:
        if self.fair and tag > self._now:
            self._ended[key] = tag

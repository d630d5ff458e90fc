"""Poll while any tab is open and broadcast to all tabs.

Each live page is measured every two seconds, once for all its tabs. Without tabs there is no thread. While PostgreSQL
is unavailable, tabs are notified and polling backs off.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from drain.contrib.web.clients import NOBODY, Visitor
from drain.errors import DrainError
from drain.formatting import visible

log = logging.getLogger(__name__)

# Poll interval, and the longest one while PostgreSQL is unavailable.
EVERY_SECONDS = 2.0
_LONGEST_SECONDS = 30.0
# Limits: tabs, their pages, and events queued per tab.
LISTENERS = 200
_TOPICS = 20
_WAITING_NEWS = 4

Render = Callable[[], str]


@dataclass(frozen=True)
class News:
    """Event: `page` with the HTML of a live part, or `away` with the reason why it cannot be measured."""

    event: str
    text: str


class Listener:
    """One tab, with a bounded queue: a tab that does not read is dropped, and reconnects."""

    def __init__(self, visitor: Visitor = NOBODY) -> None:
        self.visitor = visitor
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[News] = asyncio.Queue(_WAITING_NEWS)
        self._end = asyncio.Event()

    def offer(self, news: News) -> None:
        """Queue an event, from any thread."""
        self._call(self._put, news)

    def end(self) -> None:
        """End the tab's stream, from any thread."""
        self._call(self._end.set)

    def _call(self, function: Callable[..., object], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError:
            # The loop is closed: the program is exiting.
            return

    def _put(self, news: News) -> None:
        if self._news.full():
            self._end.set()
        else:
            self._news.put_nowait(news)

    async def next(self) -> News:
        """Wait for the next event."""
        return await self._news.get()

    async def ended(self) -> None:
        """Wait until the stream must end."""
        await self._end.wait()


@dataclass
class _Topic:
    render: Render
    listeners: set[Listener] = field(default_factory=set)
    latest: News | None = None


class FullError(DrainError):
    """Too many listeners."""


class Live:
    """Listeners of all pages, and the measuring thread; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False

    def listen(self, topic: str, render: Render, visitor: Visitor = NOBODY) -> Listener:
        """Register a listener, on the tab's event loop; `render` is used only for a page's first one.

        When full, the visitor with most tabs loses one, or FullError is raised.
        """
        listener = Listener(visitor)
        with self._lock:
            is_new = topic not in self._topics
            if self._is_closed or (self._is_full(is_new) and not self._make_room(visitor, is_new)):
                raise FullError("too many tabs listen; this one shows what was true when it was loaded")
            found = self._topics.setdefault(topic, _Topic(render))
            found.listeners.add(listener)
            if found.latest is not None:
                listener.offer(found.latest)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="drain web live", daemon=True)
                self._thread.start()
        if is_new:
            self._wake.set()
        return listener

    def _is_full(self, is_new: bool) -> bool:  # noqa: FBT001
        listeners = sum(len(each.listeners) for each in self._topics.values())
        return listeners >= LISTENERS or (is_new and len(self._topics) >= _TOPICS)

    def _make_room(self, visitor: Visitor, is_new: bool) -> bool:  # noqa: FBT001
        """End a stream of the visitor with most, by network first; False if none has more than this one."""
        tabs = [each for topic in self._topics.values() for each in topic.listeners]
        networks = Counter(each.visitor.network for each in tabs)
        visitors = Counter(each.visitor for each in tabs)
        ends = [
            (networks[each.visitor.network], visitors[each.visitor], name, each)
            for name, topic in self._topics.items()
            # Dropping one of several would not save a measurement.
            if not is_new or len(topic.listeners) == 1
            for each in topic.listeners
        ]
        if not ends:
            return False
        of_network, of_visitor, name, most = max(ends, key=lambda each: each[:2])
        if most.visitor.network == visitor.network:
            has_more = of_visitor > visitors[visitor] + 1
        else:
            has_more = of_network > networks[visitor.network] + 1
        if has_more:
            self._drop(name, most)
            most.end()
        return has_more

    def _drop(self, topic: str, listener: Listener) -> None:
        if (found := self._topics.get(topic)) is not None:
            found.listeners.discard(listener)
            if not found.listeners:
                del self._topics[topic]

    def forget(self, topic: str, listener: Listener) -> None:
        """Unregister a listener."""
        with self._lock:
            self._drop(topic, listener)
            is_over = not self._topics
        # While others listen, a leaving tab must not trigger a measurement.
        if is_over:
            self._wake.set()

    @property
    def number(self) -> int:
        """Number of tabs."""
        with self._lock:
            return sum(len(topic.listeners) for topic in self._topics.values())

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            self._is_closed = True
            listeners = [listener for topic in self._topics.values() for listener in topic.listeners]
        for listener in listeners:
            listener.end()
        self._wake.set()

    def _run(self) -> None:
        pause = EVERY_SECONDS
        while True:
            # Clear first: a listener that arrives after the look wakes the thread again.
            self._wake.clear()
            if not (topics := self._now()):
                return
            fine = len(topics) == sum(self._tell(topic) for topic in topics)
            pause = EVERY_SECONDS if fine else min(2 * pause, _LONGEST_SECONDS)
            self._wake.wait(pause)

    def _now(self) -> list[_Topic]:
        with self._lock:
            if self._is_closed or not self._topics:
                self._thread = None
                return []
            return list(self._topics.values())

    def _tell(self, topic: _Topic) -> bool:
        try:
            news = News("page", topic.render())
        except DrainError as error:
            news = News("away", visible(str(error)))
        except Exception as error:
            log.exception("a live page failed", extra={"event": "web_failed"})
            news = News("away", f"the page failed ({type(error).__name__}); the log has the reason")
        with self._lock:
            topic.latest = news
            listeners = list(topic.listeners)
        for listener in listeners:
            listener.offer(news)
        return news.event == "page"

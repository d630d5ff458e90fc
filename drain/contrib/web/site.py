"""Parts that all pages share: settings, sessions, Redis, templates, live updates, and access."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from drain import wire
from drain.config import Settings
from drain.contrib.web.access import Access
from drain.contrib.web.history import History
from drain.contrib.web.live import Live
from drain.contrib.web.memory import Memory
from drain.contrib.web.sessions import Sessions
from drain.contrib.web.templating import Templates
from drain.errors import UnavailableError
from drain.wire import Producer

T = TypeVar("T")

# Time for which a Redis that has not answered is not asked again, in seconds. A silent one would take five seconds of
# each page.
_AWAY_SECONDS = 5.0

if TYPE_CHECKING:
    from starlette.routing import Router


class Site:
    """Parts of one `drain web`.

    Args:
        settings: Settings that name the database and Redis.
        access: Who may write.
        is_live: Pages follow what happens.
        statistics: Page that `drain stats` writes, if one is named.

    Attributes:
        settings: The same.
        access: The same.
        is_live: The same.
        statistics: The same.
        sessions: Sessions of PostgreSQL.
        redis: What Redis knows, if one is named and answers.
        templates: Templates of all pages.
        history: Jobs that finished in the last hours.
        memory: Answers that are remembered for a moment.
        live: The one thread that measures while somebody listens.
        router: All routes; set by `asgi.application`.
    """

    router: Router

    def __init__(
        self, settings: Settings, access: Access, *, is_live: bool = True, statistics: Path | None = None
    ) -> None:
        self.settings = settings
        self.access = access
        self.is_live = is_live
        self.statistics = statistics
        self.sessions = Sessions(settings)
        producer = wire.Producer(settings.redis_url, settings.namespace) if settings.redis_url else None
        self.redis = RedisSide(producer)
        self.templates = Templates()
        self.history = History()
        self.memory = Memory()
        self.live = Live()

    def close(self) -> None:
        """End all streams, and close the connections."""
        self.live.close()
        self.sessions.close()
        self.redis.close()


class RedisSide:
    """Questions to Redis; after an error it is left alone for a few seconds.

    Args:
        producer: Client that only looks; None if no Redis is named.
    """

    def __init__(self, producer: Producer | None) -> None:
        self._producer = producer
        self._away_until = 0.0
        self._problem = "" if producer else "no Redis is named (DRAIN_REDIS_URL)"

    @property
    def problem(self) -> str:
        """Reason why nothing is known of Redis now; "" if it has answered."""
        return self._problem

    @property
    def producer(self) -> Producer | None:
        """Client that only looks; None if Redis is not configured or unavailable."""
        return None if monotonic() < self._away_until else self._producer

    def ask(self, question: Callable[[Producer], T]) -> T | None:
        """Ask a question; None if Redis is not configured or unavailable. `problem` then says why."""
        if (producer := self.producer) is None:
            return None
        try:
            answer = question(producer)
        except UnavailableError as error:
            self._away_until, self._problem = monotonic() + _AWAY_SECONDS, str(error)
            return None
        self._problem = ""
        return answer

    def close(self) -> None:
        """Close the connections."""
        if self._producer:
            self._producer.close()

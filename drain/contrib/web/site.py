"""Parts shared by pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from drain import wire
from drain.config import Settings
from drain.contrib.web.access import Access
from drain.contrib.web.bulk_actions import BulkActions
from drain.contrib.web.history import History
from drain.contrib.web.levels import Levels
from drain.contrib.web.live import Live
from drain.contrib.web.memory import Memory
from drain.contrib.web.sessions import Sessions
from drain.contrib.web.templating import Templates
from drain.errors import UnavailableError
from drain.wire import Producer

T = TypeVar("T")

# Back off from a Redis that failed: a silent one would delay each page by five seconds.
_AWAY_SECONDS = 5.0

if TYPE_CHECKING:
    from starlette.routing import Router


class Site:
    """Parts of one `drain web`; `application` sets the router."""

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
        self.levels = Levels()
        self.memory = Memory()
        self.live = Live()
        self.bulk_actions = BulkActions(self.sessions)

    def close(self) -> None:
        """End streams, threads and bulk actions, and close connections."""
        self.live.close()
        self.levels.close()
        self.bulk_actions.close()
        self.sessions.close()
        self.redis.close()


class RedisSide:
    """Queries Redis, backing off after an error."""

    def __init__(self, producer: Producer | None) -> None:
        self._producer = producer
        self._away_until = 0.0
        self._problem = "" if producer else "DRAIN_REDIS_URL is not set"

    @property
    def problem(self) -> str:
        """Why Redis has not answered; "" if it has."""
        return self._problem

    @property
    def producer(self) -> Producer | None:
        """Read-only client; None if not configured or unavailable."""
        return None if monotonic() < self._away_until else self._producer

    def ask(self, question: Callable[[Producer], T]) -> T | None:
        """Run a query; None if unavailable."""
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

"""Parts that all pages share: settings, sessions, Redis, templates, the reader of the news, and who may write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drain import wire
from drain.config import Settings
from drain.contrib.web.access import Access
from drain.contrib.web.history import History
from drain.contrib.web.live import Live
from drain.contrib.web.memory import Memory
from drain.contrib.web.redis_side import RedisSide
from drain.contrib.web.sessions import Sessions
from drain.contrib.web.templating import Templates

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

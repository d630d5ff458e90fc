"""Notifications of a job's end, for applications awaiting its result."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from drain.config import VARIABLES
from drain.errors import ConfigError
from drain.wire.keys import ended_channel

_FIRST_PAUSE_SECONDS = 0.02
_GROWTH = 1.5
_ANSWER_SECONDS = 2.0
_AWAY = (redis.RedisError, OSError)


class Ends:
    """Subscription to a job's channel; without Redis, `wait` only pauses.

    Raises:
        ConfigError: Invalid URL.
    """

    def __init__(self, job_id: int, redis_url: str | None) -> None:
        self._channel = ended_channel(job_id)
        self._pause = _FIRST_PAUSE_SECONDS
        self._client: Any = None
        self._subscription: Any = None
        url = redis_url or os.environ.get(VARIABLES["redis_url"], "").strip()
        if url:
            self._client = _client(url)

    async def __aenter__(self) -> Ends:
        """Subscribe."""
        if self._client is not None:
            self._subscription = self._client.pubsub(ignore_subscribe_messages=False)
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._subscription.subscribe(self._channel)
                    # After Redis confirms, no message is missed.
                    while await self._subscription.get_message(timeout=_ANSWER_SECONDS) is None:
                        pass
            except (*_AWAY, TimeoutError):
                await self._give_up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self._give_up()

    async def wait(self, seconds: float) -> None:
        """Wait for a notification."""
        if self._subscription is not None:
            until = monotonic() + seconds
            try:
                while (left := until - monotonic()) > 0:
                    if await self._subscription.get_message(timeout=left) is not None:
                        return
                return
            except _AWAY:
                await self._give_up()
        await asyncio.sleep(min(seconds, self._pause))
        self._pause *= _GROWTH

    async def _give_up(self) -> None:
        subscription, self._subscription = self._subscription, None
        client, self._client = self._client, None
        for each in (subscription, client):
            if each is not None:
                with suppress(*_AWAY):
                    await each.aclose()


def _client(url: str) -> Any:
    try:
        return redis.asyncio.Redis.from_url(
            url, socket_connect_timeout=_ANSWER_SECONDS, retry=Retry(NoBackoff(), 0)
        )
    except (ValueError, TypeError, redis.RedisError):
        raise ConfigError(
            "DRAIN_REDIS_URL cannot be read; it has the form redis://host:6379/0 or unix:///path/redis.sock"
        ) from None

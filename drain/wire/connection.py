"""Redis clients with bounded waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from drain.errors import ConfigError, UnavailableError

# Overrides the URL: some values are pickles.
BYTES = {"decode_responses": False, "encoding": "utf-8", "encoding_errors": "strict"}
_LONGEST_WAIT_SECONDS = 3600


class RedisConnection:
    """Thread-safe connections to one Redis.

    Methods raise UnavailableError if Redis is unreachable, exceeds five seconds, or refuses (out of memory, read-only,
    loading, wrong password).
    """

    def __init__(self, redis_url: str) -> None:
        self.where = describe(redis_url)
        self._redis = connect(redis_url)

    def ping(self) -> None:
        """Raise unless Redis replies."""
        with reachable(self.where):
            self._redis.ping()

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()


@contextmanager
def reachable(where: str) -> Iterator[None]:
    """Translate Redis errors to UnavailableError."""
    try:
        yield
    except redis.RedisError as error:
        raise UnavailableError(f"Redis at {where} does not take commands: {error}") from error


def connect(redis_url: str) -> redis.Redis:
    """Return a client without automatic retries.

    Raises:
        ConfigError: Invalid URL.
    """
    options: dict[str, Any] = {
        "socket_timeout": 5.0,
        "socket_connect_timeout": 2.0,
        "retry": Retry(NoBackoff(), 0),
    }
    if not redis_url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        client = redis.Redis.from_url(redis_url, **options)
        client.connection_pool.connection_kwargs.update(BYTES)
        # Validates the URL's parameters.
        client.connection_pool.make_connection()
        given = client.connection_pool.connection_kwargs
        given.get("host", "").encode("idna")
        if not all(
            0 < given[timeout] <= _LONGEST_WAIT_SECONDS
            for timeout in ("socket_timeout", "socket_connect_timeout")
        ):
            raise ValueError("a wait without an upper bound")
    except (ValueError, TypeError, LookupError, redis.RedisError):
        raise ConfigError(
            "DRAIN_REDIS_URL cannot be read; it has the form redis://host:6379/0 or unix:///path/redis.sock"
        ) from None
    return client


def describe(redis_url: str) -> str:
    """Return the URL without credentials and parameters."""
    parts = urlsplit(redis_url)
    host = parts.hostname or ""
    with suppress(ValueError):
        host += f":{parts.port}" if parts.port else ""
    return f"{host}{parts.path}" or "localhost"

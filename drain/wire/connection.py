"""Connections to Redis: every wait has an upper bound, and errors become one line of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from drain.errors import ConfigError, UnavailableError

# Options of a connection that reads bytes, whatever the URL says: some of the values are pickled.
BYTES = {"decode_responses": False, "encoding": "utf-8", "encoding_errors": "strict"}
# Upper bound of a wait on Redis that a URL may ask for.
_LONGEST_WAIT_SECONDS = 3600


class RedisConnection:
    """Connections to one Redis. Safe to use from several threads.

    Every method raises UnavailableError when Redis cannot be reached, does not answer within five
    seconds, or refuses: out of memory, read-only, loading, wrong password.

    Args:
        redis_url: URL of the Redis.

    Attributes:
        where: The URL without user, password and parameters.
    """

    def __init__(self, redis_url: str) -> None:
        self.where = describe(redis_url)
        self._redis = connect(redis_url)

    def ping(self) -> None:
        """Raise unless Redis answers."""
        with reachable(self.where):
            self._redis.ping()

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()


@contextmanager
def reachable(where: str) -> Iterator[None]:
    """Turn every error of Redis, and of the way to it, into one line of ours.

    Raises:
        UnavailableError: Redis raised one.
    """
    try:
        yield
    except redis.RedisError as error:
        raise UnavailableError(f"Redis at {where} does not take commands: {error}") from error


def connect(redis_url: str) -> redis.Redis:
    """Make a client in which every wait has an upper bound and which retries no command by itself.

    Raises:
        ConfigError: The URL cannot be read.
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
        # Unknown parameters of the URL, and values that a parameter cannot have, come to light only here.
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
    """Return the URL without user, password and parameters, for people to read."""
    parts = urlsplit(redis_url)
    host = parts.hostname or ""
    with suppress(ValueError):
        host += f":{parts.port}" if parts.port else ""
    return f"{host}{parts.path}" or "localhost"

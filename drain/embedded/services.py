"""Both servers together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drain.embedded.postgres_server import CARELESS, EmbeddedPostgres
from drain.embedded.redis_server import EmbeddedRedis


@dataclass(frozen=True)
class Services:
    """Running servers."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis

    @property
    def database_url(self) -> str:
        """URL of the database `drain`."""
        return self.postgres.url

    @property
    def redis_url(self) -> str:
        """URL of Redis' database 0."""
        return self.redis.url


@contextmanager
def services(
    directory: Path | None = None,
    *,
    listen: bool = False,
    postgres_port: int | None = None,
    redis_port: int | None = None,
    durable: bool = True,
    postgres_settings: Mapping[str, str] | None = None,
    redis_settings: Mapping[str, str] | None = None,
) -> Iterator[Services]:
    """Run both servers during the block, without libpq's variables.

    Args:
        directory: None for a temporary one.
        listen: Also on free ports of 127.0.0.1; a given port implies it.
        durable: False turns fsync off: a crash of the machine may lose data.

    Raises:
        EmbeddedError: A server is not installed, or did not start.
    """
    postgres = EmbeddedPostgres(
        directory and directory / "postgres",
        settings=({} if durable else CARELESS) | dict(postgres_settings or {}),
        listen=listen,
        port=postgres_port,
    )
    redis_ = EmbeddedRedis(
        directory and directory / "redis", settings=redis_settings, listen=listen, port=redis_port
    )
    with without_client_settings(), postgres, redis_:
        yield Services(postgres, redis_)


@contextmanager
def without_client_settings() -> Iterator[None]:
    """Hide libpq's variables during the block."""
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    try:
        yield
    finally:
        os.environ.update(removed)

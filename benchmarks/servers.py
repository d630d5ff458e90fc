"""Servers of the benchmarks: embedded, and Debian's if installed."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import redis

from benchmarks import figures
from drain.database import schema
from drain.embedded import EmbeddedPostgres, EmbeddedRedis, Services
from drain.embedded.services import without_client_settings
from drain.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Kinds of servers: those that `drain dev` starts, and Debian's packages, whose PostgreSQL has JIT on.
EMBEDDED, DEBIAN = "embedded", "debian"
KINDS = (EMBEDDED, DEBIAN)
# Four processes of a peer, with 24 connections each.
_CONNECTIONS = {"max_connections": "200"}
_DEBIAN_POSTGRES = Path("/usr/lib/postgresql")
_DEBIAN_REDIS = Path("/usr/bin")


@contextmanager
def running(kind: str, settings: Mapping[str, str] | None = None) -> Iterator[Services]:
    """Run servers of this kind, with the schema, while the block runs.

    Raises:
        EmbeddedError: A server is not installed or did not start.
    """
    postgres, redis_ = _debian() if kind == DEBIAN else (None, None)
    with ExitStack() as stack:
        stack.enter_context(without_client_settings())
        services = Services(
            stack.enter_context(
                EmbeddedPostgres(settings=_CONNECTIONS | dict(settings or {}), bin_directory=postgres)
            ),
            stack.enter_context(EmbeddedRedis(bin_directory=redis_)),
        )
        schema.install(services.database_url)
        yield services


def of_both_kinds(settings: Mapping[str, str] | None = None) -> Iterator[tuple[str, Services]]:
    """Start each kind in turn; each runs until the caller asks for the next one."""
    for kind in KINDS:
        with ExitStack() as stack:
            try:
                services = stack.enter_context(running(kind, settings))
            except EmbeddedError as error:
                figures.say(f"not measured: {error}")
                continue
            yield kind, services


def title(services: Services) -> str:
    """Describe the versions of both servers, and whether PostgreSQL has JIT."""
    with psycopg.connect(services.database_url) as connection:
        version = connection.info.parameter_status("server_version")
        (jit,) = connection.execute("SHOW jit").fetchone() or ("",)
        connection.execute("SET jit = on")
        (built_in,) = connection.execute("SELECT pg_jit_available()").fetchone() or (False,)
    with redis.Redis.from_url(services.redis_url) as client:
        redis_version = client.info("server")["redis_version"]
    return f"PostgreSQL {version}, JIT {jit if built_in else 'not built in'}; Redis {redis_version}"


def _debian() -> tuple[Path, Path]:
    found = sorted(_DEBIAN_POSTGRES.glob("[1-9][0-9]/bin"))
    if not found:
        raise EmbeddedError(f"no servers of Debian: no PostgreSQL in {_DEBIAN_POSTGRES}")
    return found[-1], _DEBIAN_REDIS

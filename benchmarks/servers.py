"""Servers of the benchmarks: the embedded PostgreSQL, and Debian's if it is installed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import redis

from benchmarks import figures
from drain.database import schema
from drain.embedded import EmbeddedPostgres, EmbeddedRedis, Services
from drain.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEBIAN = Path("/usr/lib/postgresql")


def of_both_kinds(settings: Mapping[str, str] | None = None) -> Iterator[Services]:
    """Start each kind in turn, with the schema; it runs until the caller asks for the next one."""
    for directory in (None, *sorted(DEBIAN.glob("*/bin"))[-1:]):
        with ExitStack() as stack:
            try:
                postgres = stack.enter_context(EmbeddedPostgres(settings=settings, bin_directory=directory))
                services = Services(postgres, stack.enter_context(EmbeddedRedis()))
            except EmbeddedError as error:
                figures.say(f"not measured: {error}")
                continue
            schema.install(services.database_url)
            yield services


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

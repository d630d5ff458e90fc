"""Servers for all drills, and for each of them a scene of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from programs.processes import Processes
from psycopg.sql import SQL, Identifier
from redis import Redis

from drain.database import postgres, schema
from drain.embedded import Services, services
from drills import shop
from drills.scene import DidNotHappenError, Scene, Tell

_MODULES = Path(__file__).parents[1]
# The time of each commit is kept, so that it can be compared with that of the job's claim.
_POSTGRES = {"track_commit_timestamp": "on"}


@contextmanager
def theatre() -> Iterator[Services]:
    """PostgreSQL and Redis, for as many scenes as you like, one after the other."""
    # A drill kills processes and not the machine, so PostgreSQL need not fsync.
    with services(durable=False, postgres_settings=_POSTGRES) as servers:
        yield servers


@contextmanager
def scene(servers: Services, database: str, tell: Tell) -> Iterator[Scene]:
    """A scene, for as long as the block runs.

    Args:
        servers: What Redis holds is thrown away.
        database: Name of a new database, which stays.
        tell: Records an event.
    """
    database_url = _prepared(servers, database)
    variables = {
        "DRAIN_DATABASE_URL": database_url,
        "DRAIN_REDIS_URL": servers.redis_url,
        "DRAIN_JOBS": "drills.jobs",
    }
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drill-")))
        processes = stack.enter_context(Processes(directory, variables, [_MODULES]))
        there = stack.enter_context(closing(Scene(servers, database_url, processes, tell)))
        shop.create(there.connection)
        try:
            yield there
        except DidNotHappenError:
            for child in processes.running():
                tell("log", process=child.name, ends=child.last_lines())
            raise


def _prepared(servers: Services, database: str) -> str:
    with closing(postgres.connect(servers.database_url, "drain drill")) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(database)))
    with Redis.from_url(servers.redis_url) as redis:
        redis.flushall()
    url = servers.postgres.url_of(database)
    schema.install(url)
    return url

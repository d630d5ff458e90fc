"""Environment of the drills: servers for all, and a scenario for each."""

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
from drills.scenario import DidNotHappenError, RecordEvent, Scenario

# Directory that the drills' modules are imported from.
_MODULES = Path(__file__).parents[1]
# PostgreSQL keeps the time of each commit, so that it can be compared with the time of the job's claim.
_POSTGRES = {"track_commit_timestamp": "on"}


@contextmanager
def environment() -> Iterator[Services]:
    """Start PostgreSQL and Redis, for any number of scenarios, one after the other."""
    # A drill kills processes and not the machine, so PostgreSQL need not fsync.
    with services(durable=False, postgres_settings=_POSTGRES) as servers:
        yield servers


@contextmanager
def scenario(servers: Services, database: str, record: RecordEvent) -> Iterator[Scenario]:
    """Prepare a scenario, which ends with the block.

    Args:
        servers: Running servers; all keys in Redis are deleted.
        database: Name of a new database, which is not dropped.
        record: Records an event.
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
        started = stack.enter_context(closing(Scenario(servers, database_url, processes, record)))
        shop.create(started.connection)
        try:
            yield started
        except DidNotHappenError:
            for child in processes.running():
                record("log", process=child.name, ends=child.last_lines())
            raise


def _prepared(servers: Services, database: str) -> str:
    with closing(postgres.connect(servers.database_url, "drain drill")) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(database)))
    with Redis.from_url(servers.redis_url) as redis:
        redis.flushall()
    url = servers.postgres.url_of(database)
    schema.install(url)
    return url

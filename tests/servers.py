"""A PostgreSQL and a Redis per test process, two more that tests may crash, and a database of its own for each test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from redis import Redis

from drain.database import schema
from drain.embedded import Services, services
from tests.databases import copy_of, drop, in_schema, new_template
from tests.helpers import query
from tests.jobs_for_tests import EFFECTS

MEMORY = Path("/dev/shm")
ROOM_IN_MEMORY = 2 * 1024**3
# The verdicts of drills and soak compare the time of a commit with that of the job's claim.
POSTGRES = {"track_commit_timestamp": "on"}

TEMPLATE = "template_drain"
# Schema of the tables in every database that tests work on: `DRAIN_TEST_SCHEMA=jobs pytest -m database`.
SCHEMA = os.environ.pop("DRAIN_TEST_SCHEMA", "")


@pytest.fixture(scope="session")
def temporary_directory() -> str:
    """Where servers put their data: in memory if there is room.

    A new database is 300 new files, for which some disks take a quarter of a second.
    """
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_IN_MEMORY
    return str(MEMORY) if roomy else tempfile.gettempdir()


@pytest.fixture(scope="session")
def servers(temporary_directory: str) -> Iterator[Services]:
    with _started_in(temporary_directory) as running:
        yield running


@pytest.fixture(scope="session")
def template(servers: Services) -> str:
    return _template(servers)


@pytest.fixture(scope="session")
def fragile_servers(temporary_directory: str) -> Iterator[Services]:
    """A second PostgreSQL and Redis, for tests that stop or crash them."""
    with _started_in(temporary_directory) as running:
        _template(running)
        yield running


@pytest.fixture
def own(processes: None, fragile_servers: Services) -> Iterator[Services]:
    """Servers that the test may stop and crash. The tables, and one for effects, are in the database `drain`."""
    drop(fragile_servers.postgres, "drain")
    with Redis.from_url(fragile_servers.redis_url) as client:
        client.flushall()
    with _database(fragile_servers, TEMPLATE, "drain") as url:
        query(url, EFFECTS)
        try:
            yield fragile_servers
        finally:
            fragile_servers.postgres.start()
            fragile_servers.redis.start()


@pytest.fixture
def database_url(servers: Services, template: str) -> Iterator[str]:
    with _database(servers, template) as url:
        yield url


@pytest.fixture(scope="session")
def common_database_url(servers: Services, template: str) -> Iterator[str]:
    """A database for tests that leave it unchanged because every statement is refused or rolled back."""
    with _database(servers, template) as url:
        yield url


@pytest.fixture
def other_database_url(servers: Services, template: str) -> Iterator[str]:
    """A second database with an installation of its own; all others here have the template's."""
    with _database(servers, template) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE drain_state SET installation = gen_random_uuid()")
        yield url


@pytest.fixture
def empty_database_url(servers: Services) -> Iterator[str]:
    with _database(servers, "template1") as url:
        if SCHEMA:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(SCHEMA)))
        yield url


@pytest.fixture
def redis_url(servers: Services) -> str:
    with Redis.from_url(servers.redis_url) as client:
        client.flushall()
    return servers.redis_url


@contextmanager
def _started_in(temporary_directory: str) -> Iterator[Services]:
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", temporary_directory)
            running = stack.enter_context(services(durable=False, postgres_settings=POSTGRES))
        yield running


def _template(servers: Services) -> str:
    schema.install(in_schema(new_template(servers.postgres, TEMPLATE), SCHEMA))
    return TEMPLATE


@contextmanager
def _database(servers: Services, template: str, name: str | None = None) -> Iterator[str]:
    with copy_of(servers.postgres, template, name, schema=SCHEMA) as url:
        if SCHEMA:
            # As the roles of an application would have it: these connections have no setting of ours.
            database = Identifier(url.partition("?")[0].rpartition("/")[2])
            with psycopg.connect(url, autocommit=True) as connection:
                path = SQL("ALTER DATABASE {} SET search_path = {}, public")
                connection.execute(path.format(database, Identifier(SCHEMA)))
        yield in_schema(url, SCHEMA)

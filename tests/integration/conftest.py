"""What only the tests with servers share."""

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from drain import schema
from drain.config import Settings
from drain.embedded import Services
from tests import jobs_for_tests
from tests.support import query
from tests.workshop import Workshop
from workers import registry
from workers.entry import Worker
from workers.job_connection import close_all


@pytest.fixture
def shop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """A worker to whom no job is registered yet, and a table for effects."""
    monkeypatch.setattr(registry, "_jobs", {})
    jobs_for_tests.create_effects(database_url)
    with closing(Worker(Settings(database_url=database_url))) as worker:
        yield Workshop(database_url, worker)
    close_all()


@pytest.fixture
def latin1(servers: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """The same on a database whose encoding lacks most characters."""
    monkeypatch.setattr(registry, "_jobs", {})
    administrator, name = servers.postgres.url_of("postgres"), f"test_{uuid4().hex}"
    query(administrator, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")
    # psycopg reads JSON as UTF-8, whatever it has agreed upon with the server.
    url = f"{servers.postgres.url_of(name)}&client_encoding=utf8"
    schema.install(url)
    with closing(Worker(Settings(database_url=url))) as worker:
        yield Workshop(url, worker)
    query(administrator, f"DROP DATABASE {name} WITH (FORCE)")

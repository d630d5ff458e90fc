"""Fixtures on the servers: workers in this process, `drain work` processes, a Django site, roles, hostile ones too."""

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from redis import Redis

from drain.config import Settings
from drain.database import schema
from drain.embedded import Services
from drain.jobs import registry
from drain.workers.entry import Worker
from tests import hostility, jobs_for_tests
from tests.databases import copy_of, new_template
from tests.django_project.site import Site
from tests.helpers import disconnect, query
from tests.inprocess_worker import Workshop
from tests.worker_processes import Yard


@pytest.fixture
def shop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """A worker to whom no job is registered yet, and a table for effects."""
    monkeypatch.setattr(registry, "_jobs", {})
    query(database_url, jobs_for_tests.EFFECTS)
    with closing(Worker(Settings(database_url=database_url))) as worker:
        yield Workshop(database_url, worker)


@pytest.fixture
def yard(processes: None, database_url: str, redis_url: str) -> Yard:
    """Processes of `drain work` in a database with a table for effects."""
    query(database_url, jobs_for_tests.EFFECTS)
    return Yard(database_url, redis_url)


@pytest.fixture(scope="session")
def template_of_django(servers: Services) -> str:
    """A database in which `manage.py migrate` of the Django project of the tests has made all tables."""
    name = "template_django"
    migrated = Site(new_template(servers.postgres, name), servers.redis_url).manage("migrate")
    assert migrated.returncode == 0, migrated.stderr
    return name


@pytest.fixture
def site(processes: None, servers: Services, template_of_django: str, redis_url: str) -> Iterator[Site]:
    """The Django project, in a database of its own."""
    with copy_of(servers.postgres, template_of_django) as url:
        yield Site(url, redis_url)


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


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
    disconnect()
    query(administrator, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def template_with_roles(servers: Services) -> str:
    hostility.prepare(servers.postgres, "template_with_roles")
    return "template_with_roles"


@pytest.fixture
def place(servers: Services, template_with_roles: str) -> Iterator[hostility.Place]:
    """A database of its own, in which each program of ours has a role."""
    with copy_of(servers.postgres, template_with_roles) as url:
        yield hostility.Place(url)


@pytest.fixture(scope="session")
def hostile_template(servers: Services) -> str:
    place = hostility.prepare(servers.postgres, "template_hostile")
    hostility.arm(place)
    hostility.overload(place)
    return "template_hostile"


@pytest.fixture
def hostile_place(servers: Services, hostile_template: str) -> Iterator[hostility.Place]:
    """The same, and `public` is full of what a hostile role has put there."""
    with copy_of(servers.postgres, hostile_template) as url:
        yield hostility.Place(url)

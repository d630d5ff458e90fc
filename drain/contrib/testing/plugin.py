"""Pytest plugin, which imports on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from drain.contrib.testing.servers import DrainServers, RunningServers
    from drain.contrib.testing.staged import Staged

_MARKER = "drain_servers"
_NO_CONNECTION = (
    "the fixture `staged` needs the connection of your tests: define a fixture `drain_connection` in conftest.py that "
    "returns their SQLAlchemy Session, psycopg connection or django.db.connection, and rolls back at its end"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}: start PostgreSQL and Redis for the test; the fixture of this name runs its jobs",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give marked tests the fixture."""
    for item in items:
        names: Any = getattr(item, "fixturenames", None)
        if names is not None and item.get_closest_marker(_MARKER) is not None and _MARKER not in names:
            names.insert(0, _MARKER)


@pytest.fixture
def drain_connection(request: pytest.FixtureRequest) -> Any:
    """Return the test's connection: overridden in conftest.py, or Django's with pytest-django."""
    if request.config.pluginmanager.hasplugin("django") and "db" in request.fixturenames:
        from django.db import connection  # type: ignore[import-untyped, unused-ignore]

        return connection
    pytest.fail(_NO_CONNECTION, pytrace=False)


@pytest.fixture
def staged(drain_connection: Any) -> Staged:
    """Return the jobs staged on `drain_connection`; see `drain.contrib.testing.Staged`."""
    from drain.contrib.testing.staged import Staged

    return Staged(drain_connection)


@pytest.fixture(scope="session")
def drain_test_servers() -> Iterator[RunningServers]:
    """Start PostgreSQL and Redis when first needed, for the whole run."""
    from drain.contrib.testing.servers import started

    with started() as servers:
        yield servers


@pytest.fixture
def drain_servers(
    drain_test_servers: RunningServers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DrainServers]:
    """Give the test its own database and Redis through the environment; see `DrainServers`."""
    with drain_test_servers.for_one_test() as servers:
        for name, text in servers.environment.items():
            monkeypatch.setenv(name, text)
        yield servers

"""What only the tests with servers share."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from drain.config import Settings
from tests import jobs_for_tests
from tests.workshop import Workshop
from workers import registry
from workers.completion import _engines
from workers.entry import Worker


@pytest.fixture
def shop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """A worker to whom no job is registered yet, and a table for effects."""
    monkeypatch.setattr(registry, "_jobs", {})
    jobs_for_tests.create_effects(database_url)
    with closing(Worker(Settings(database_url=database_url))) as worker:
        yield Workshop(database_url, worker)
    for engine in _engines.values():
        engine.dispose()
    _engines.clear()

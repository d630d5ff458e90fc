"""Seams for extensions: entry points of other packages, whose failures harm nothing else."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psycopg
import pytest

from drain.config import Settings
from drain.contrib.plain import handler as of_rq
from drain.database.postgres import Connection
from drain.enqueuer import extensions
from drain.enqueuer.extensions import Extensions
from drain.errors import ConfigError
from drain.moved import MOVED
from drain.workers.options import PlainOptions
from drain.workers.process import plain_jobs
from tests.installed_package import install

SETTINGS = Settings(database_url="postgresql://nowhere/shop")
# No extension asks it.
CONNECTION = cast(Connection, None)
BEACON = """
import psycopg

class Beacon:
    path = "/beacon/"

    def __init__(self, settings):
        self.measured, self.error = [], None

    def measure(self, connection, queues, waiting):
        if self.error:
            raise self.error
        self.measured.append((*queues, *waiting))

    def answer(self, path, query):
        return 200, f"{path}?{query}".encode()

    def clear(self):
        self.measured.clear()

class Broken:
    def __init__(self, settings):
        raise ValueError("no\\nluck")
"""


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Extensions:
    lines = "beacon = shop_of_seams:Beacon\nbroken = shop_of_seams:Broken\nabsent = shop_of_seams:Absent"
    install(monkeypatch, tmp_path, {extensions.GROUP: lines}, {"shop_of_seams": BEACON})
    return Extensions(SETTINGS)


def test_an_extension_measures_and_answers_in_the_leader(found: Extensions) -> None:
    beacon = found._loaded["beacon"]
    assert "/scale/" in found.answers
    del found._loaded["scaling"]
    found.measure(CONNECTION, ["mail"], {"calls": {}})
    assert beacon.measured == [("mail", "calls")]  # type: ignore[attr-defined]
    assert found.answers["/beacon/"]("a", "b=1") == (200, b"a?b=1")
    found.clear()
    assert beacon.measured == []  # type: ignore[attr-defined]


def test_an_extension_that_fails_has_no_metrics_until_it_measures_again(
    found: Extensions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    del found._loaded["scaling"]
    beacon = found._loaded["beacon"]
    found.measure(CONNECTION, ["mail"], {})
    beacon.error = ValueError("no\nidea")  # type: ignore[attr-defined]
    for _ in range(2):
        found.measure(CONNECTION, ["mail"], {})
        assert beacon.measured == []  # type: ignore[attr-defined]
    assert caplog.messages == ["leader extension beacon cannot measure: ValueError: no idea"]
    assert found.answers["/beacon/"]("", "") == (200, b"?")

    for error in (None, ValueError("again")):
        beacon.error = error  # type: ignore[attr-defined]
        found.measure(CONNECTION, ["mail"], {})
    assert len(caplog.messages) == 2


def test_a_database_outage_is_raised_to_the_leader(found: Extensions) -> None:
    del found._loaded["scaling"]
    found._loaded["beacon"].error = psycopg.OperationalError()  # type: ignore[attr-defined]
    with pytest.raises(psycopg.OperationalError):
        found.measure(CONNECTION, [], {})
    assert found._failed == set()


def test_an_extension_that_cannot_be_loaded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    lines = "broken = shop_of_seams:Broken"
    install(monkeypatch, tmp_path, {extensions.GROUP: lines}, {"shop_of_seams": BEACON})
    assert set(Extensions(SETTINGS)._loaded) == {"scaling"}
    assert caplog.messages == ["leader extension broken cannot be loaded: ValueError: no luck"]


@pytest.fixture
def _afresh() -> Iterator[None]:
    plain_jobs.handler.cache_clear()
    yield
    plain_jobs.handler.cache_clear()


@pytest.mark.usefixtures("_afresh")
def test_plain_jobs_are_run_by_rqs_worker() -> None:
    assert plain_jobs.handler() is of_rq


@pytest.mark.usefixtures("_afresh")
def test_only_one_package_runs_plain_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, {plain_jobs.GROUP: "mine = shop_of_seams"}, {})
    with pytest.raises(ConfigError, match=r"drain\.contrib\.plain\.handler and shop_of_seams both run"):
        plain_jobs.handler()


@pytest.mark.usefixtures("_afresh")
def test_the_plain_job_handler_must_be_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_jobs, "GROUP", "shop.plain_jobs")
    install(monkeypatch, tmp_path, {"shop.plain_jobs": "mine = shop_of_nowhere"}, {})
    with pytest.raises(ConfigError, match="shop_of_nowhere, which runs plain RQ jobs, cannot be imported"):
        plain_jobs.handler()


@pytest.mark.usefixtures("_afresh")
def test_without_an_extension_no_plain_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_jobs, "GROUP", "nobody")
    found = plain_jobs.handler()
    assert isinstance(found, plain_jobs.NoHandler)
    found.check_options(PlainOptions(serializer="nowhere.Nothing"))
    assert found.start()().pid == 0


@pytest.mark.parametrize("name", MOVED)
def test_importing_an_old_module_name_reports_the_new_one(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"^{name} is {MOVED[name]} now$"):
        __import__(name)
    __import__(MOVED[name])

"""A job that began with one version of its code, and continues with another."""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from drain.tables import steps
from tests.inprocess_worker import Workshop

_MODULE = "orders_of_two_versions"
_SOURCE = """
import drain
from drain.workers import current_job
from tests.jobs_with_undo import do, do_in_loop

@drain.job(name="orders", retry_base_seconds=0.01, retry_cap_seconds=0.01)
{code}
"""
_OLD = """
def fulfil():
    drain.step("reserve", do, "reserved")
    drain.step("charge", do, "charged")
    raise OSError
"""

Deploy = Callable[[str], ModuleType]


@pytest.fixture
def deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deploy]:
    """Install a version of the code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    versions = iter(range(100))

    def install(code: str) -> ModuleType:
        sys.modules.pop(_MODULE, None)
        # Otherwise the compiled file of the same second counts.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        (tmp_path / f"{_MODULE}.py").write_text(f"# {next(versions)}\n" + _SOURCE.format(code=code))
        importlib.invalidate_caches()
        return importlib.import_module(_MODULE)

    yield install
    sys.modules.pop(_MODULE, None)


@pytest.mark.parametrize(
    ("code", "effects", "unused"),
    [
        ('drain.step("reserve", do, "a"); drain.step("bill", do, "billed")', ["billed"], "'charge'"),
        ('drain.step("reserve", do, "a"); drain.step.options(was="charge")("bill", do, "billed")', [], None),
        (
            'drain.step("check", do, "checked"); drain.step("reserve", do, "a"); drain.step("charge", do, "b")',
            ["checked"],
            None,
        ),
        ('drain.step("reserve", do, "a")', [], "'charge'"),
        ('drain.step("charge", do, "a"); drain.step("reserve", do, "b")', [], None),
        ("pass", [], "'charge'"),
    ],
    ids=["renamed", "renamed with was", "added", "one removed", "reordered", "all removed"],
)
def test_the_new_code_skips_what_it_knows_and_warns_of_the_rest(
    shop: Workshop,
    deploy: Deploy,
    caplog: pytest.LogCaptureFixture,
    code: str,
    effects: list[str],
    unused: str | None,
) -> None:
    job_id = shop.deliver(deploy(_OLD).fulfil)
    assert shop.work(job_id) == "retrying"
    deploy(f"def fulfil():\n    {code}")
    with caplog.at_level(logging.WARNING):
        assert shop.work(job_id) == "finished"
    assert shop.effects() == ["reserved", "charged", *effects]
    found = [
        record.getMessage() for record in caplog.records if getattr(record, "event", "") == "steps_unused"
    ]
    assert len(found) == (unused is not None)
    assert all(f"its recorded steps {unused} (" in line for line in found)


def test_an_async_step_is_found_by_its_former_name(shop: Workshop, deploy: Deploy) -> None:
    job_id = shop.deliver(deploy(_OLD).fulfil)
    assert shop.work(job_id) == "retrying"
    step = 'await drain.async_step.options(was="charge")("bill", do_in_loop, "billed")'
    deploy(f"async def fulfil():\n    assert {step} == 'charged'")
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["reserved", "charged"]


def test_a_former_name_cannot_be_used_with_the_new_one(shop: Workshop, deploy: Deploy) -> None:
    job_id = shop.deliver(deploy(_OLD).fulfil)
    assert shop.work(job_id) == "retrying"
    both = 'drain.step.options(was="charge")("bill", do, "a"); drain.step("charge", do, "b")'
    deploy(f"def fulfil():\n    {both}")
    assert shop.work(job_id) == "dead"
    assert shop.row(job_id)["last_error"]["message"].startswith("two steps of a job are named 'charge'")


def test_a_job_whose_code_is_gone_is_one_line_and_dies_in_the_end(shop: Workshop, deploy: Deploy) -> None:
    from drain.jobs import registry

    job_id = shop.deliver(deploy(_OLD).fulfil, max_attempts=2)
    assert shop.work(job_id) == "retrying"
    del registry._jobs["orders"]
    assert shop.work(job_id) == "dead"
    assert shop.row(job_id)["last_error"]["message"].startswith("no function is registered as 'orders'")


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_later_attempt_without_steps_warns_only_of_recorded_ones(
    shop: Workshop, deploy: Deploy, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    for recorded in (True, False):
        step = 'drain.step("charge", do, "charged"); ' if recorded else ""
        job_id = shop.deliver(deploy(f"def fulfil():\n    {step}raise OSError").fulfil)
        assert shop.work(job_id) == "retrying"
        deploy(f"{kind} fulfil():\n    pass")
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            assert shop.work(job_id) == "finished"
        found = [getattr(record, "event", "") for record in caplog.records]
        assert found.count("steps_unused") == recorded


def test_a_first_attempt_without_steps_reads_none(
    shop: Workshop, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_options: object) -> None:
        raise AssertionError

    monkeypatch.setattr(steps, "read", refuse)
    assert shop.work(shop.deliver(deploy("def fulfil():\n    pass").fulfil)) == "finished"


def test_a_later_attempt_finishes_although_its_steps_cannot_be_read(
    shop: Workshop, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_options: object) -> None:
        raise psycopg.OperationalError

    job_id = shop.deliver(deploy(_OLD).fulfil)
    assert shop.work(job_id) == "retrying"
    deploy("def fulfil():\n    pass")
    monkeypatch.setattr(steps, "read", refuse)
    assert shop.work(job_id) == "finished"

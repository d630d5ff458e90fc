"""Layers of the tests, by what a test needs.

    unit         nothing but this process
    database     PostgreSQL and Redis
    process      programs that it starts, and kills
    spark        a Spark session
    acceptance   whole programs, as users run them: minutes, frameworks, browsers, images

A test's layer comes from its fixtures, in tests/spark and tests/acceptance from the folder, and is its marker:
`pytest -m "unit or database"`. A file is in the folder of the highest layer that one of its tests needs. A test that
needs more than its folder says fails, and so does a test outside these folders.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LAYERS = ("unit", "database", "process", "spark", "acceptance")
# What a fixture needs; `processes` lets a test start programs.
FIXTURES = {"servers": "database", "processes": "process", "spark": "spark"}
TESTS = Path(__file__).parent

_running: pytest.Item | None = None


@pytest.fixture
def processes() -> None:
    """Permission to start programs: with it a test is of the layer `process`."""


def layer_of(item: pytest.Item) -> str:
    """The layer that a test needs."""
    folder = folder_of(item)
    if folder in LAYERS[3:]:
        return folder
    needed = {FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in FIXTURES}
    return max(needed, key=LAYERS.index, default=LAYERS[0])


def folder_of(item: pytest.Item) -> str:
    """The folder below tests/ that a test is in."""
    return item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""


def complaint(item: pytest.Item) -> str | None:
    """Explain why a test is in the wrong folder; None if it is in the right one."""
    folder, layer = folder_of(item), layer_of(item)
    if folder not in LAYERS:
        return f"{item.nodeid} is in none of the folders of the layers: {', '.join(LAYERS)}"
    if LAYERS.index(layer) > LAYERS.index(folder):
        return f"{item.nodeid} needs the layer {layer}: move it to tests/{layer}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the marker of its layer, before any are selected."""
    for item in items:
        item.add_marker(layer_of(item))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that is in the wrong place."""
    if wrong := complaint(item):
        pytest.fail(wrong, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Remember which test is running."""
    global _running  # noqa: PLW0603
    _running = item
    try:
        return (yield)
    finally:
        _running = None


def may_start_programs() -> None:
    """Raise an AssertionError if the running test lacks the fixture `processes`."""
    if _running is not None and layer_of(_running) in LAYERS[:2]:
        raise AssertionError("a test that starts programs needs the fixture `processes`")


def _popen(process: subprocess.Popen[Any], *args: Any, **options: Any) -> None:
    may_start_programs()
    _start(process, *args, **options)


_start = subprocess.Popen.__init__
subprocess.Popen.__init__ = _popen  # type: ignore[method-assign,assignment]

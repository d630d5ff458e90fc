"""Layers: a test in the wrong folder fails, and so does one that starts a program without permission."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from tests import layers


def item(folder: str, *fixtures: str) -> Any:
    path = layers.TESTS / folder / "test_x.py"
    return SimpleNamespace(path=path, nodeid=f"tests/{folder}/test_x.py::test", fixturenames=fixtures)


@pytest.mark.parametrize(
    ("folder", "fixtures", "layer"),
    [
        ("unit", (), "unit"),
        ("process", (), "unit"),
        ("process", ("servers",), "database"),
        ("process", ("servers", "processes"), "process"),
        ("spark", (), "spark"),
        ("acceptance", ("servers",), "acceptance"),
    ],
)
def test_a_tests_layer_follows_from_its_fixtures(folder: str, fixtures: tuple[str, ...], layer: str) -> None:
    assert layers.layer_of(item(folder, *fixtures)) == layer
    assert layers.complaint(item(folder, *fixtures)) is None


@pytest.mark.parametrize(
    ("folder", "fixture"),
    [("unit", "servers"), ("database", "processes"), ("process", "spark"), ("integration", "servers")],
)
def test_a_test_in_the_wrong_folder_fails(folder: str, fixture: str) -> None:
    assert layers.complaint(item(folder, fixture))


def test_a_test_without_permission_starts_no_program() -> None:
    with pytest.raises(AssertionError, match="needs the fixture `processes`"):
        subprocess.run(["true"], check=True)

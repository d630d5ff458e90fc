"""The docstring of a package is the map of its room: each of its modules is named in it."""

import importlib
import pkgutil

import pytest


@pytest.mark.parametrize(
    "room",
    [
        "workers",
        *(f"workers.{name}" for name in ("supervisor", "process", "handover")),
        *(f"workers.{name}" for name in ("execution", "context", "lease")),
    ],
)
def test_a_package_docstring_names_each_module(room: str) -> None:
    package = importlib.import_module(room)
    named = {line.split()[0] for line in (package.__doc__ or "").splitlines() if line.startswith("    ")}
    assert {module.name for module in pkgutil.iter_modules(package.__path__)} <= named

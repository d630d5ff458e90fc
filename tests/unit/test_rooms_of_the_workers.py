"""The docstring of a package is the map of its room: each of its modules is named in it."""

import importlib
import pkgutil

import pytest


@pytest.mark.parametrize(
    "room", ["workers.process", "workers.plain", "workers.supervisor", "workers.handover"]
)
def test_the_map_of_a_room_names_each_module(room: str) -> None:
    package = importlib.import_module(room)
    named = {line.split()[0] for line in (package.__doc__ or "").splitlines() if line.startswith("    ")}
    assert {module.name for module in pkgutil.iter_modules(package.__path__)} <= named

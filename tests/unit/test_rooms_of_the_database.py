"""The docstring of a package is the map of its modules."""

import ast
import re

import pytest

from tests.helpers import ROOT


@pytest.mark.parametrize("room", ["tables", "database"])
def test_a_package_docstring_names_exactly_its_modules(room: str) -> None:
    package = ROOT / "drain" / room
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    named = re.findall(r"^    (\w+)  +\S", text, re.MULTILINE)

    assert sorted(named) == sorted(path.stem for path in package.glob("[!_]*.py"))

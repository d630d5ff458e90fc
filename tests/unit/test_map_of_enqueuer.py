"""The comment of the enqueuer's package is the map of its modules."""

import re
from pathlib import Path

from drain import enqueuer


def test_the_docstring_names_exactly_the_modules_of_the_package() -> None:
    modules = {path.stem for path in Path(enqueuer.__path__[0]).glob("*.py")} - {"__init__"}
    named = re.findall(r"^    (\w+)  +\S", enqueuer.__doc__ or "", re.MULTILINE)
    assert sorted(named) == sorted(modules)

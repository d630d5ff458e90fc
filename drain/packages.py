"""Colliding names: an application's own `workers` or `pipeline`, where job-drain has packages of these names.

Python imports the package that it finds first. If that is the application's, job-drain breaks; if it is job-drain's,
the application's cannot be imported. Either case is reported in one line here, instead of by an ImportError that names
neither package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from os import path
from types import ModuleType

from drain.errors import NameTakenError

# Names of our packages that an application might choose too.
OURS = ("workers", "pipeline")
# Directory that holds our packages.
_HOME = path.dirname(path.dirname(path.realpath(__file__)))  # noqa: PTH120  (pathlib takes longer to import)


def require_own(*names: str, directories: Sequence[str] = ()) -> None:
    """Make sure that an import finds job-drain's own packages.

    Args:
        names: Names of the packages; both by default.
        directories: Directories that Python will search before the import path of this process.

    Raises:
        NameTakenError: Python finds an application's package first; the text says which, and what to do.
    """
    for name in names or OURS:
        _refuse(name, PathFinder.find_spec(name, [*directories, *sys.path]))


def own(name: str) -> ModuleType:
    """Import job-drain's own package of this name.

    Raises:
        NameTakenError: Python imports an application's package under this name.
    """
    if name not in sys.modules:
        require_own(name)
    module = import_module(name)
    _refuse(name, module.__spec__)
    return module


def own_first(name: str) -> ModuleType:
    """Import job-drain's own package of this name, though an application's stands before it on the import path.

    From then on the application's cannot be imported: this is for processes that run jobs of job-drain.

    Raises:
        NameTakenError: Python has already imported an application's package under this name.
    """
    if name not in sys.modules:
        sys.path.insert(0, _HOME)
        try:
            import_module(name)
        finally:
            sys.path.remove(_HOME)
    return own(name)


def hint(error: BaseException) -> str:
    """Explain an import that failed because job-drain's package hides the application's; "" for other errors."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or name not in OURS:
        return ""
    return f"`{name}` is the name of a package of job-drain: give yours another name"


def _refuse(name: str, spec: ModuleSpec | None) -> None:
    # A directory without __init__.py has no origin, and Python never prefers it to a package that has one.
    if spec is None or spec.origin is None:
        return
    place = spec.origin.removesuffix(f"{path.sep}__init__.py")
    directory = path.dirname(path.realpath(place))  # noqa: PTH120
    # A package beside another copy of `drain` is job-drain's too: a clone of job-drain is the current directory.
    if directory == _HOME or path.isdir(path.join(directory, "drain", "tables")):  # noqa: PTH112, PTH118
        return
    raise NameTakenError(
        f"{place} stands before the package `{name}` of job-drain on Python's import path: give it another name, "
        "or start this in another directory and without it on PYTHONPATH"
    )

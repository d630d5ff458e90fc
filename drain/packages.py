"""Names that collide: an application's own `workers` or `pipeline`, where job-drain needs its packages of these names.

Python imports what it finds first. An application's package that stands before job-drain's breaks job-drain; one that
stands behind it cannot be imported. Either is one line here, instead of an ImportError from deep inside.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from os import path
from types import ModuleType

from drain.errors import NameTakenError

OURS = ("workers", "pipeline")
_HOME = path.dirname(path.dirname(path.realpath(__file__)))  # noqa: PTH120  (pathlib takes longer to import)


def require_own(*names: str, directories: Sequence[str] = ()) -> None:
    """Make sure that an import finds job-drain's own packages.

    Args:
        names: Names of the packages; both by default.
        directories: Where Python will look before the import path of this process.

    Raises:
        NameTakenError: An application's package stands before one of them; the text says which, and what to do.
    """
    for name in names or OURS:
        _refuse(name, PathFinder.find_spec(name, [*directories, *sys.path]))


def own(name: str) -> ModuleType:
    """Job-drain's own package of this name, imported.

    Raises:
        NameTakenError: What Python imports under this name is an application's.
    """
    if name not in sys.modules:
        require_own(name)
    module = import_module(name)
    _refuse(name, module.__spec__)
    return module


def hint(error: BaseException) -> str:
    """What to do about an import that failed because job-drain's package hides the application's; else ""."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or name not in OURS:
        return ""
    return f"`{name}` is the name of a package of job-drain: give yours another name"


def _refuse(name: str, spec: ModuleSpec | None) -> None:
    # A directory without __init__.py has no origin, and never stands before a package that has one.
    if spec is None or spec.origin is None:
        return
    place = spec.origin.removesuffix(f"{path.sep}__init__.py")
    directory = path.dirname(path.realpath(place))  # noqa: PTH120
    # Beside another copy of job-drain, such as a clone that somebody stands in, it is a copy too.
    if directory == _HOME or path.isdir(path.join(directory, "drain", "tables")):  # noqa: PTH112, PTH118
        return
    raise NameTakenError(
        f"{place} stands before the package `{name}` of job-drain on Python's import path: give it another name, "
        "or start this in another directory and without it on PYTHONPATH"
    )

"""Python files below a few directories: which have changed since the last look."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from time import monotonic

# Directories that hold no sources of an application; hidden ones are skipped too.
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "venv", "env"})
_MOST_DIRECTORIES = 3000
_SECONDS = 0.5
# A look takes a tenth of the time at most.
_TIMES = 10

Stamp = tuple[int, int, int]


class TooManyDirectoriesError(Exception):
    """A tree is too large to look through it every half second."""


class Sources:
    """Looks at the modification times of all .py files, twice a second, or less often where that takes long.

    Args:
        directory: Watched with all that is below, unless that is too much.
        modules: Names of modules; the directories of those elsewhere are watched too.
    """

    def __init__(self, directory: Path, modules: Iterable[str]) -> None:
        self.directory = directory
        self._places = list(
            dict.fromkeys(place for module in modules for place in _places_of(module, directory))
        )
        self.complete = True
        self._look_at = 0.0
        try:
            _stamps([directory])
        except TooManyDirectoriesError:
            self.complete = False
        self._watched = [*([directory] if self.complete else []), *self._places]
        self._known = self._look()
        self._latest = self._known

    def changed(self) -> list[Path]:
        """Files that were added, removed or written since the last change that was reported.

        Empty until two looks in a row have found the same: an editor or a checkout that writes many files is one
        change.
        """
        if monotonic() < self._look_at:
            return []
        before, self._latest = self._latest, self._look()
        if self._latest == self._known or self._latest != before:
            return []
        paths = {path for path, _ in self._latest.items() ^ self._known.items()}
        self._known = self._latest
        return sorted(paths)

    def _look(self) -> dict[Path, Stamp]:
        began = monotonic()
        try:
            return _stamps(self._watched)
        except TooManyDirectoriesError:
            # It has grown since; what was found before has to do.
            return self._latest
        finally:
            self._look_at = monotonic() + max(_SECONDS, _TIMES * (monotonic() - began))


def _stamps(places: Sequence[Path]) -> dict[Path, Stamp]:
    found: dict[Path, Stamp] = {}
    for place in places:
        files = _sources(place) if place.is_dir() else iter([place])
        for file in files:
            with suppress(OSError):
                stat = file.stat()
                found[file] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return found


def _sources(directory: Path) -> Iterator[Path]:
    """All .py files below a directory; links to directories are not followed."""
    for visited, (root, directories, files) in enumerate(os.walk(directory)):
        if visited >= _MOST_DIRECTORIES:
            raise TooManyDirectoriesError
        # Another name of a virtual environment.
        directories[:] = (
            [] if "pyvenv.cfg" in files else [name for name in directories if not _is_skipped(name)]
        )
        if "pyvenv.cfg" not in files:
            yield from (Path(root, name) for name in files if name.endswith(".py"))


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED


def _places_of(module: str, directory: Path) -> Iterator[Path]:
    """Directories of a package, or the file of a module; none if it is below the directory, or not found."""
    spec = _spec_of(module.partition(".")[0], directory)
    if spec is None:
        return
    origin = [spec.origin] if spec.origin and spec.has_location else []
    for name in spec.submodule_search_locations or origin:
        place = Path(name).absolute()
        if not place.is_relative_to(directory):
            yield place


def _spec_of(name: str, directory: Path) -> ModuleSpec | None:
    # Found but not imported: this process never runs the application's code.
    if found := PathFinder.find_spec(name, [str(directory), *sys.path]):
        return found
    with suppress(ValueError, ImportError):
        return importlib.util.find_spec(name)
    return None

"""Watcher of Python files."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from time import monotonic

# Like hidden directories, without application sources.
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "venv", "env"})
_MOST_DIRECTORIES = 3000
_PAUSE_SECONDS = 0.5
# In durations of a scan: scanning takes less than a tenth of the time.
_PAUSE_IN_SCANS = 10

# Modification time in nanoseconds, size and inode.
Stamp = tuple[int, int, int]


class TooManyDirectoriesError(Exception):
    """A tree is too large to scan often."""


class SourceWatcher:
    """Scans modification times of .py files twice a second, or less often if a scan is slow.

    Args:
        directory: Tree to watch; `complete` is False if it has too many directories.
        modules: Watched too if elsewhere.
    """

    def __init__(self, directory: Path, modules: Iterable[str]) -> None:
        self.directory = directory
        self._places = list(
            dict.fromkeys(place for module in modules for place in _places_of(module, directory))
        )
        self.complete = True
        self._next_scan_at = 0.0
        try:
            _stamps([directory])
        except TooManyDirectoriesError:
            self.complete = False
        self._watched = [*([directory] if self.complete else []), *self._places]
        self._known = self._scan()
        self._latest = self._known

    def changed(self) -> list[Path]:
        """Return files added, removed or written since the last reported change.

        Empty until two consecutive scans agree, so that an editor or a checkout makes one change.
        """
        if monotonic() < self._next_scan_at:
            return []
        before, self._latest = self._latest, self._scan()
        if self._latest == self._known or self._latest != before:
            return []
        paths = {path for path, _ in self._latest.items() ^ self._known.items()}
        self._known = self._latest
        return sorted(paths)

    def _scan(self) -> dict[Path, Stamp]:
        began = monotonic()
        try:
            return _stamps(self._watched)
        except TooManyDirectoriesError:
            # The tree has grown since the first scan.
            return self._latest
        finally:
            self._next_scan_at = monotonic() + max(_PAUSE_SECONDS, _PAUSE_IN_SCANS * (monotonic() - began))


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
    """List all .py files below a directory, without following links."""
    for visited, (root, directories, files) in enumerate(os.walk(directory)):
        if visited >= _MOST_DIRECTORIES:
            raise TooManyDirectoriesError
        # Marks a virtual environment of any name.
        directories[:] = (
            [] if "pyvenv.cfg" in files else [name for name in directories if not _is_skipped(name)]
        )
        if "pyvenv.cfg" not in files:
            yield from (Path(root, name) for name in files if name.endswith(".py"))


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED


def _places_of(module: str, directory: Path) -> Iterator[Path]:
    """Find a module's or package's places outside `directory`."""
    spec = _spec_of(module.partition(".")[0], directory)
    if spec is None:
        return
    origin = [spec.origin] if spec.origin and spec.has_location else []
    for name in spec.submodule_search_locations or origin:
        place = Path(name).absolute()
        if not place.is_relative_to(directory):
            yield place


def _spec_of(name: str, directory: Path) -> ModuleSpec | None:
    # Found, not imported: this process never runs application code.
    if found := PathFinder.find_spec(name, [str(directory), *sys.path]):
        return found
    with suppress(ValueError, ImportError):
        return importlib.util.find_spec(name)
    return None

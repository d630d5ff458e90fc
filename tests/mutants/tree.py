"""Copies of the working tree, and the tests in them."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutant import CatalogueError

ROOT = Path(__file__).parents[2]
_MEMORY = Path("/dev/shm")
_WHERE = "import drain.workers\nfor each in (drain, drain.workers): print(each.__file__)"


@contextmanager
def copied() -> Iterator[Path]:
    """Copy the files that git tracks, or would track, as they are in the working tree."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    place = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="mutant-", dir=place, ignore_cleanup_errors=True) as directory:
        for name in names:
            # A file that was moved and not committed yet is still listed.
            if (ROOT / name).is_file() or (ROOT / name).is_symlink():
                target = Path(directory, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target, follow_symlinks=False)
        yield Path(directory)


def environment(root: Path) -> dict[str, str]:
    """Return an environment in which processes import the packages of the copy, not those of an editable install."""
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'examples'}"}


def require_own_packages(root: Path) -> None:
    """Raise a CatalogueError if a process in that environment imports the packages of another checkout."""
    command, env = (sys.executable, "-c", _WHERE), environment(root)
    shown = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=True)
    if others := [path for path in shown.stdout.splitlines() if not Path(path).is_relative_to(root)]:
        raise CatalogueError(f"{others[0]} is imported instead of the copy in {root}")


def files_of_tests(root: Path) -> Mapping[str, Path]:
    """Return the path of each test file below `root` by its base name."""
    return {path.name: path.relative_to(root) for path in (root / "tests").rglob("test_*.py")}


def pytest_id(test: str, files: Mapping[str, Path]) -> str:
    """Return pytest's id of a test of the catalogue."""
    name, _, rest = test.partition("::")
    if name not in files:
        raise CatalogueError(f"no file below tests/ is named {name}")
    return f"{files[name]}::{rest}"

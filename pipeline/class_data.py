"""Class data of Spark's JVM: an archive of parsed classes, mapped instead of loading 16,000 classes.

A user's first JVM writes it in the background: 170 MB that save a third of each later start's processor time. Its name
covers all that it depends on; a JVM that rejects it works without.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import time

# Variables and settings that change the JVM's class path or memory layout.
_VARIABLES = (
    *("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "YARN_CONF_DIR"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS"),
)
_SETTINGS = ("spark.driver.defaultJavaOptions", "spark.driver.extraClassPath", "spark.driver.memory")
# Special in Spark's list of JVM options.
_SPECIAL = frozenset('":\\\n')
_UNUSED_SECONDS = 30 * 24 * 3600


@dataclass(frozen=True)
class Archive:
    """JVM options, and the file to write, if any."""

    options: str
    new: Path | None


def archive(program: str, spark: str, settings: Mapping[str, str]) -> Archive | None:
    """Choose a new JVM's archive, if this user can have one."""
    # RuntimeError: no home directory, as in containers, or circular links.
    with suppress(OSError, RuntimeError):
        directory = _directory()
        if directory is None:
            return None
        path = directory / f"spark-{_digest(program, spark, settings)}.jsa"
        if path.exists():
            path.touch()
            return _archive("SharedArchiveFile", path, None)
        _tidy(directory)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        return _archive("ArchiveClassesAtExit", new, new)
    return None


def _archive(option: str, path: Path, new: Path | None) -> Archive:
    # Silences remarks on standard output.
    return Archive(f'"-XX:{option}={path}" -Xlog:disable', new)


def _directory() -> Path | None:
    """Create the directory; None if others could write there, or no option can name it."""
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "job-drain").absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    ours = found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(directory, os.W_OK)
    return directory if ours and not _SPECIAL & set(str(directory)) else None


def _digest(program: str, spark: str, settings: Mapping[str, str]) -> str:
    given = [os.environ.get(name) for name in _VARIABLES], [settings.get(name) for name in _SETTINGS]
    facts = *_facts(Path(program)), *_facts(Path(spark, "jars")), given
    return sha256(repr(facts).encode()).hexdigest()[:16]


def _facts(path: Path) -> Iterator[str | int]:
    real = path.resolve(strict=True)
    yield from (str(real), real.stat().st_mtime_ns)


def _tidy(directory: Path) -> None:
    for each in directory.glob("spark-*"):
        if each.stat().st_mtime < time() - _UNUSED_SECONDS:
            each.unlink(missing_ok=True)

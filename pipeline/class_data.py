"""Class data of Spark's JVM: an archive of parsed classes, which a start maps instead of loading 16,000 classes again.

The first session of a user makes the archive as its JVM ends, in the background; it takes 170 MB, and saves a third of
the processor time of each later start. Everything that decides which archive fits is part of its name, and a JVM that
does not accept an archive works without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import time

# Variables that change the class path or the memory layout of the JVM.
_VARIABLES = (
    *("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "YARN_CONF_DIR"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS"),
)
# Settings of Spark's that change them.
_SETTINGS = ("spark.driver.defaultJavaOptions", "spark.driver.extraClassPath", "spark.driver.memory")
# Characters that have a meaning in an option of the JVM's, or in Spark's list of such options.
_SPECIAL = frozenset('":\\\n')
# Archives and remains that no session has used for this long are removed.
_UNUSED_SECONDS = 30 * 24 * 3600


@dataclass(frozen=True)
class Archive:
    """Archive of a session.

    Attributes:
        options: Options of the JVM.
        new: File that the JVM writes as it ends, whose name without the last suffix is the archive's; None: there is an
            archive, which the JVM reads.
    """

    options: str
    new: Path | None


def archive(program: str, spark: str, settings: Mapping[str, str]) -> Archive | None:
    """Choose the archive of a JVM that is going to be started; None if this user can have none.

    Args:
        program: Path of the Java program.
        spark: Directory of Spark.
        settings: Spark's settings by name.
    """
    # RuntimeError: this user has no home directory, as in a container that runs under any id; or links in a circle.
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
    # The JVM would say on standard output why it accepts no archive, or leaves out a class.
    return Archive(f'"-XX:{option}={path}" -Xlog:disable', new)


def _directory() -> Path | None:
    """Make the directory of the archives; None if others could put code there, or if no option can name it."""
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

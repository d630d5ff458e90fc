"""When `drain dev` starts its programs again: after a death, after a change, and after a worker that does not end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from drain.__main__ import main
from drain.contrib.dev import development
from drain.contrib.dev.worker import IMPORT_FAILED


class Clock:
    """The only clock of `drain.contrib.dev.development`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Program:
    """A program that runs until a test ends it."""

    def __init__(self) -> None:
        self.name = "program"
        self.pid: int | None = None
        self.code: int | None = None
        self.calls: list[str] = []

    def ended(self) -> int | None:
        code, self.code = self.code, None
        return code

    def start(self, *_words: str) -> None:
        self.pid = 7
        self.calls.append("start")

    def end(self, code: int) -> None:
        self.pid, self.code = None, code

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.pid = None
        self.calls.append("kill")


class Console:
    """Lines that a program of `drain dev` would print."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, name: str, text: str, _colour: str | None = None) -> None:
        self.lines.append(f"{name}: {text}")


class Sources:
    """Changes that a test makes."""

    complete = True
    changes: list[Path] = []  # noqa: RUF012  (one for each test)

    def __init__(self, *_given: object) -> None:
        Sources.changes = []

    def changed(self) -> list[Path]:
        changes, Sources.changes = Sources.changes, []
        return changes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(development, "monotonic", found)
    monkeypatch.setattr(development, "SourceWatcher", Sources)
    return found


def worker() -> tuple[Any, Program, Console]:
    program, console = Program(), Console()
    made: Any = development._Worker
    return made(program, console, ["shop"], []), program, console


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--database-url", "postgresql:///shop", "--port", "5433"], 2, "--port needs its own server"),
        (["--redis-url", "redis://a", "--redis-port", "6380"], 2, "--redis-port needs its own server"),
        (["--database-url", "postgresql:///shop", "--redis-url", "redis://a"], 2, "nothing to run"),
        (["--redis-url", "http://a"], 1, "DRAIN_REDIS_URL must start with redis://"),
    ],
)
def test_conflicting_or_invalid_options_are_refused(words: list[str], code: int, said: str) -> None:
    result = CliRunner().invoke(main, ["dev", *words], env={"DRAIN_JOBS": ""})
    assert (result.exit_code, said in result.output) == (code, True), result.output


def test_the_restart_pause_of_a_crashing_program_doubles_up_to_a_limit(clock: Clock) -> None:
    given: Any = Program(), Console()
    program, console = given
    enqueuer = development._Enqueuer(program, console)
    pauses = []
    for _ in range(7):
        enqueuer.check()
        program.end(1)
        died_at = clock.now
        while not program.pid:
            enqueuer.check()
            clock.now += 0.0 if program.pid else 0.25
        pauses.append(clock.now - died_at)
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10]
    assert console.lines[0] == "program: ended with exit code 1: it starts again in 0.5 s"
    # After a life that was long enough the next pause is the first one again.
    clock.now += 60
    program.end(-9)
    enqueuer.check()
    assert console.lines[-1] == "program: was killed by signal 9: it starts again in 0.5 s"


def test_a_source_change_ends_a_workers_restart_pause(clock: Clock) -> None:
    keeper, program, _ = worker()
    for _ in range(3):
        keeper.check()
        program.end(1)
        clock.now += 5
    keeper.check()
    assert program.pid is None
    Sources.changes = [Path("shop.py")]
    keeper.check()
    assert program.pid is not None
    assert "terminate" not in program.calls


def test_a_worker_that_does_not_import_waits_for_the_next_change(clock: Clock) -> None:
    keeper, program, console = worker()
    keeper.check()
    program.end(IMPORT_FAILED)
    for _ in range(10):
        clock.now += 60
        keeper.check()
    assert program.calls == ["start"]
    assert console.lines == ["worker: waits for the next change of a Python file"]
    Sources.changes = [Path("shop.py")]
    keeper.check()
    assert program.calls == ["start", "start"]


def test_a_worker_that_does_not_stop_after_a_change_is_killed_and_restarted(clock: Clock) -> None:
    keeper, program, console = worker()
    keeper.check()
    Sources.changes = [Path("shop.py")]
    keeper.check()
    # A second change meanwhile neither signals it again nor gives it more time.
    clock.now += development._RELOAD_SECONDS / 2
    Sources.changes = [Path("shop.py")]
    keeper.check()
    assert program.calls == ["start", "terminate"]
    clock.now += development._RELOAD_SECONDS
    keeper.check()
    assert program.calls == ["start", "terminate", "kill", "start"]
    assert console.lines[-1] == "worker: does not end, and is killed"


def test_a_worker_that_ends_after_a_change_starts_again_without_a_pause(clock: Clock) -> None:
    keeper, program, console = worker()
    keeper.check()
    Sources.changes = [Path("shop.py")]
    keeper.check()
    program.end(0)
    keeper.check()
    assert program.calls == ["start", "terminate", "start"]
    assert clock.now == 1000.0
    assert console.lines == ["worker: shop.py changed: the worker starts again"]


class Server:
    """A server with a log, which a test ends."""

    def __init__(self, log: Path) -> None:
        self.log, self.runs = log, True

    def start(self) -> None:
        self.log.write_text(self.log.read_text() + "x y z [1] FATAL: the database system is starting up\n")
        self.runs = True


def test_a_servers_logged_problem_is_shown_and_a_dead_server_restarts(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    log.write_text("x y z [1] ERROR: from before\n")
    console = Console()
    given: Any = Server(log), console
    server = development._Server("postgres", given[0], development._POSTGRES_PROBLEM, given[1])
    log.write_text(log.read_text() + "x y z [1] LOG: fine\nx y z [1] ERROR: half a")
    server.check()
    assert console.lines == []
    log.write_text(log.read_text() + " line\n")
    server.check()
    assert console.lines == ["postgres: ERROR: half a line"]
    given[0].runs = False
    server.check()
    server.check()
    assert console.lines[1:] == ["postgres: has ended: it starts again", "postgres: runs again"]

"""A server process that cannot outlive the process that started it.

It runs in a session of its own, so that Ctrl-C on the terminal reaches the owner alone, which
stops its servers in order. An owner that dies without a word (SIGKILL, or SIGTERM that nobody
handles) is noticed by a guard: a shell that reads a pipe of which only the owner holds the other
end. It stops the server, and removes its scratch directory in any case.
"""

from __future__ import annotations

import atexit
import os
import secrets
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self, TypedDict

from drain.embedded import signals
from drain.errors import EmbeddedError

START_SECONDS = 30.0
STOP_SECONDS = 10.0

# Each line names the process to stop when input ends; an empty line names none.
_GUARD = """
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
  kill -s "$1" -- "-$pid"
  turns=0
  while kill -0 "$pid" && [ $turns -lt 100 ]; do sleep 0.1; turns=$((turns + 1)); done
  kill -s KILL -- "-$pid"
fi
rm -rf -- "$2"
"""


class Credentials(TypedDict, total=False):
    """Whom a child runs as; empty for whoever we are."""

    user: int
    group: int
    extra_groups: list[int]


class GuardedServer:
    """A child process with a directory, a log, a guard, and a bounded start and stop."""

    title: ClassVar[str]
    stop_signal: ClassVar[str]

    def __init__(self, directory: Path | None) -> None:
        self.scratch = Path(tempfile.gettempdir(), f"drain-{secrets.token_hex(8)}").absolute()
        self.directory = (directory or self.scratch).absolute()
        self.log = self.directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._descendants = -1

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise EmbeddedError(f"{self.title} is not running")
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the server has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start on the directory's data, if any, and return when the server answers."""
        if self._process is not None and self._process.poll() is None:
            return
        try:
            self.kill()
            self._start_guard()
            self.directory.mkdir(parents=True, exist_ok=True)
            self.launch()
            self._wait_for_answer()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Stop in good order, or by force if that takes too long; the data stay."""
        if self._process is not None:
            self._process.send_signal(signal.Signals[f"SIG{self.stop_signal}"])
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL the server and its children at once; return when the last of them is gone."""
        if self._process is None:
            return
        try:
            if self._process.poll() is None:
                # Stopped first, so that it neither forks nor tidies up while its children die.
                self._process.send_signal(signal.SIGSTOP)
                pid = self._process.pid
                signals.send([*signals.children(pid), pid], signal.SIGKILL)
                self._process.wait(STOP_SECONDS)
            self._wait_for_descendants()
        finally:
            os.close(self._descendants)
            self._process = None
            self._tell_guard("")

    def restart(self) -> None:
        """Stop in good order and start on the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove whatever lies in no directory that the caller has named."""
        self.stop()
        if self._guard is not None:
            self._guard.communicate(timeout=STOP_SECONDS)
            self._guard = None
        _OPEN.discard(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def launch(self) -> None:
        """Prepare the directory and `run` the server."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether a client is served."""
        raise NotImplementedError

    def run(
        self,
        command: Sequence[str | Path],
        credentials: Credentials | None = None,
        descriptors: Iterable[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a command under guard, with its output appended to the log."""
        # Every descendant inherits the writing end, so that the pipe closes with the last of them.
        # Their pids would not tell: orphans stay zombies wherever process 1 does not reap them.
        descendants, inherited = os.pipe()
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    cwd="/",
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(inherited, *descriptors),
                    **(credentials or {}),
                )
        except OSError as error:
            os.close(descendants)
            raise EmbeddedError(f"cannot run {command[0]}: {error.strerror}") from error
        finally:
            os.close(inherited)
        self._descendants = descendants
        self._tell_guard(self._process.pid)
        return self._process

    def failure(self, what: str) -> EmbeddedError:
        """An error that quotes the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-5:]
        return EmbeddedError(f"{self.title} {what}; its log ends: {' | '.join(lines)}")

    def _start_guard(self) -> None:
        if self._guard is not None:
            return
        self.scratch.mkdir(mode=0o700)
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", self.stop_signal, self.scratch],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _OPEN.add(self)

    def _tell_guard(self, pid: int | str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(f"{pid}\n".encode())

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._process is None or self._process.poll() is not None:
                raise self.failure("did not start")
            if time.monotonic() > deadline:
                raise self.failure(f"did not answer within {START_SECONDS:.0f} s")
            time.sleep(0.01)

    def _wait_for_descendants(self) -> None:
        poll = select.poll()
        poll.register(self._descendants, select.POLLIN)
        if not poll.poll(STOP_SECONDS * 1000):
            raise self.failure(f"left children that still ran {STOP_SECONDS:.0f} s later")

    def _disown(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard = self._process = None


def _environment() -> dict[str, str]:
    # Settings meant for a PostgreSQL client are none for this server, and a locale that the machine
    # lacks or a time zone that has to be guessed cost warnings and time.
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
    return inherited | {"LC_ALL": "C", "TZ": "UTC"}


_OPEN: set[GuardedServer] = set()


@atexit.register
def _close_all() -> None:
    for server in list(_OPEN):
        server.close()


def _disown_all() -> None:
    # A fork neither stops the servers of its parent nor keeps their guards waiting.
    for server in _OPEN:
        server._disown()
    _OPEN.clear()


os.register_at_fork(after_in_child=_disown_all)

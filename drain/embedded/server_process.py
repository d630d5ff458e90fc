"""The process of a server with all of its descendants: started with a log, killed as a whole."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

from drain.embedded import signals


class Credentials(TypedDict, total=False):
    """Account that a child runs as; empty for the account of this process."""

    user: int
    group: int
    extra_groups: list[int]


class ServerProcess(subprocess.Popen[bytes]):
    """A server in a session of its own, so that Ctrl-C on the terminal does not reach it.

    Args:
        command: Program and arguments.
        log: File that the output is appended to.
        credentials: Account to run it as.
        descriptors: File descriptors to inherit.

    Raises:
        OSError: The program cannot be run.
    """

    def __init__(
        self, command: Sequence[str | Path], log: Path, credentials: Credentials, descriptors: Iterable[int]
    ) -> None:
        # Every descendant inherits the writing end, so that the pipe closes with the last of them.
        # Their process ids would not show that: orphans stay zombies where process 1 does not reap them.
        self._descendants, inherited = os.pipe()
        try:
            with log.open("ab") as output:
                super().__init__(
                    command,
                    cwd="/",
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(inherited, *descriptors),
                    **credentials,
                )
        except OSError:
            os.close(self._descendants)
            raise
        finally:
            os.close(inherited)

    @property
    def runs(self) -> bool:
        """True until the server has ended; its descendants may run longer."""
        return self.poll() is None

    def kill_all(self, seconds: float) -> bool:
        """SIGKILL the server and its children; to be called once, after the server has ended too.

        Args:
            seconds: Timeout for the server to end, and for its descendants.

        Returns:
            True if no descendant runs any more.
        """
        try:
            if self.runs:
                # SIGSTOP first, so that the server neither forks nor cleans up while its children die.
                self.send_signal(signal.SIGSTOP)
                signals.send([*signals.children(self.pid), self.pid], signal.SIGKILL)
                self.wait(seconds)
            return self._have_descendants_ended(seconds)
        finally:
            os.close(self._descendants)

    def _have_descendants_ended(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._descendants, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


def _environment() -> dict[str, str]:
    # Variables for a PostgreSQL client are not meant for this server. A locale that the machine lacks costs warnings,
    # and a time zone that initdb has to guess costs time.
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
    return inherited | {"LC_ALL": "C", "TZ": "UTC"}

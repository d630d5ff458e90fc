"""A shell that cleans up after this process, whatever ends it: SIGKILL too.

Its standard input is a pipe of which only this process, and children that it lets inherit it, hold the other end. The
script reads lines until the pipe is closed; the last line names the processes that run. Then it ends them.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO


class Guard:
    """A running guard.

    Args:
        script: Shell script to run; it reads its standard input to the end before it does anything.
        arguments: Positional parameters of the script, from `$1` on.
    """

    def __init__(self, script: str, *arguments: str | Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", script, "guard", *arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Signals that the terminal sends to the foreground do not reach it.
            start_new_session=True,
        )

    @property
    def pipe(self) -> IO[bytes]:
        """Writing end of the pipe, for a child that names itself to the guard."""
        assert self._shell.stdin is not None  # noqa: S101
        return self._shell.stdin

    def note(self, pids: str) -> None:
        """Write a line: the processes that run from now on; an empty line for none."""
        with suppress(BrokenPipeError):
            self.pipe.write(f"{pids}\n".encode())

    def close(self, seconds: float) -> None:
        """Close the pipe, and wait until the script has ended.

        Raises:
            subprocess.TimeoutExpired: It has not ended within the seconds.
        """
        self._shell.communicate(timeout=seconds)

    def disown(self) -> None:
        """Close the pipe in a forked process, so that the guard waits for its owner alone."""
        self.pipe.close()

"""A shell that cleans up after this process, even after SIGKILL.

It reads a pipe that only this process and chosen children hold open. Once that closes, it ends the processes named in
the last line.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO


class Guard:
    """Running guard.

    Args:
        script: Must read standard input to the end first.
        arguments: Its parameters from `$1` on.
    """

    def __init__(self, script: str, *arguments: str | Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", script, "guard", *arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Out of reach of the terminal's signals.
            start_new_session=True,
        )

    @property
    def pipe(self) -> IO[bytes]:
        """Write end of the pipe, for a child that names itself."""
        assert self._shell.stdin is not None  # noqa: S101
        return self._shell.stdin

    def note(self, pids: str) -> None:
        """Set the running processes; empty for none."""
        with suppress(BrokenPipeError):
            self.pipe.write(f"{pids}\n".encode())

    def close(self, seconds: float) -> None:
        """Close the pipe and wait for the script.

        Raises:
            subprocess.TimeoutExpired: The script is still running.
        """
        self._shell.communicate(timeout=seconds)

    def disown(self) -> None:
        """Close the pipe in a fork, leaving the guard to its owner."""
        self.pipe.close()

"""A shell that cleans up after this process, even after SIGKILL.

It reads a pipe that only this process and chosen children hold open. When that closes, it ends the processes that the
last line names.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO


class Guard:
    """Running guard, whose script must first read standard input to its end."""

    def __init__(self, script: str, *arguments: str | Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", script, "guard", *arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Not reached by the terminal's signals.
            start_new_session=True,
        )

    @property
    def pipe(self) -> IO[bytes]:
        """Write end, for a child that names itself."""
        assert self._shell.stdin is not None  # noqa: S101
        return self._shell.stdin

    def note(self, pids: str) -> None:
        """Set the running processes."""
        with suppress(BrokenPipeError):
            self.pipe.write(f"{pids}\n".encode())

    def close(self, seconds: float) -> None:
        """Close the pipe and wait for the script.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        self._shell.communicate(timeout=seconds)

    def disown(self) -> None:
        """Close a fork's pipe."""
        self.pipe.close()

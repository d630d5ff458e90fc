"""The clock of PostgreSQL, which a library that it preloads sets ahead."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
# Longer than any lease or delay.
_STEP_SECONDS = 20


class Clock:
    """Shared by all servers that are started in a block of `preloaded`.

    Attributes:
        seconds: How far it is ahead.
    """

    def __init__(self) -> None:
        self.seconds = 0
        # Servers run under an account of their own.
        self._directory = Path(tempfile.mkdtemp(prefix="soak-clock-"))
        self._directory.chmod(0o755)
        self._file, self._library = self._directory / "seconds", self._directory / "clock.so"
        self._set()
        if compiler := shutil.which("cc"):
            command = (compiler, "-O2", "-shared", "-fPIC", "-o", self._library, _SOURCE)
            subprocess.run(command, check=True)

    def step(self) -> bool:
        """Step ahead, for running servers too; False without a C compiler."""
        if not self._library.exists():
            return False
        self.seconds += _STEP_SECONDS
        self._set()
        return True

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        """Let servers that are started in this block have it."""
        given = {"LD_PRELOAD": str(self._library), "CLOCK_FILE": str(self._file)}
        if not self._library.exists():
            given = {}
        os.environ.update(given)
        try:
            yield
        finally:
            for name in given:
                del os.environ[name]

    def close(self) -> None:
        """Remove the library."""
        shutil.rmtree(self._directory)

    def _set(self) -> None:
        with os.fdopen(os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.write(self.seconds.to_bytes(8, "little"))

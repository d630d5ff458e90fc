"""Processes forked from one that has imported what they need: they start in 30 ms instead of a second.

A forked process differs from one that was executed in three ways: `/proc/PID/cmdline` and `/proc/PID/environ` are those
of the fork server, modules are imported already, and `sitecustomize` does not run.
"""

import multiprocessing
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import fork_server, layers

_context = multiprocessing.get_context("forkserver")
# Without the modules of an extra that may be missing, and without any that registers jobs.
_context.set_forkserver_preload(
    [
        "drain.commands.run",
        "drain.commands.work",
        "drain.enqueuer.daemon",
        "rq.cli",
        "sqlalchemy.dialects.postgresql",
        "sqlalchemy.orm",
        "drain.workers.command",
        # If it cannot be imported, the others are loaded nevertheless.
        "drain.__main__",
        # Last: this module hides everything imported so far from the garbage collector.
        "tests.fork_server",
    ]
)


class Forked:
    """A process with the interface of `subprocess.Popen`, in a session of its own.

    Args:
        program: Python source to run as `__main__`.
        words: Its arguments.
        env: Its whole environment.
        cwd: Its working directory.
        output: File that standard output is appended to.
        errors: The same for standard error; None for the same file.
    """

    def __init__(
        self,
        program: str,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        output: Path,
        errors: Path | None = None,
    ) -> None:
        self.args = [program, *words]
        layers.may_start_programs()
        ours, theirs = _context.Pipe(duplex=False)
        with ours, theirs:
            arguments = (
                theirs,
                program,
                list(words),
                dict(env),
                str(cwd),
                str(output),
                str(errors or output),
            )
            self._process = _context.Process(target=fork_server.run, args=arguments)
            self._process.start()
            theirs.close()
            # From here on, its process group exists. An EOFError means that the process died early.
            ours.recv()
        assert self._process.pid
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: The process is still running after `timeout` seconds.
        """
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

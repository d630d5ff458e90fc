"""Process of a server, killed with all its descendants."""

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
    """Account for a child."""

    user: int
    group: int
    extra_groups: list[int]


class ServerProcess(subprocess.Popen[bytes]):
    """Server in its own session, logging to `log`.

    Raises:
        OSError: The program cannot be run.
    """

    def __init__(
        self, command: Sequence[str | Path], log: Path, credentials: Credentials, descriptors: Iterable[int]
    ) -> None:
        # The pipe closes with the last descendant. Process ids would not do: unreaped orphans stay zombies.
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
        """True while the server runs; descendants may outlive it."""
        return self.poll() is None

    def kill_all(self, seconds: float) -> bool:
        """SIGKILL the server and its children; call once, even if it has ended.

        Returns False if descendants outlast the timeout.
        """
        try:
            if self.runs:
                # SIGSTOP first: it neither forks nor cleans up while its children die.
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
    # PG* is meant for other servers. Missing locales cause warnings; guessing a time zone slows initdb.
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
    return inherited | {"LC_ALL": "C", "TZ": "UTC"}

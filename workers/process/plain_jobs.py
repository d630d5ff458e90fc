"""Plain jobs: jobs in RQ's lists that are not tracked. An extension provides the worker for them.

A package registers one under the entry point group `drain.plain_jobs`. Without one, plain jobs are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from importlib.metadata import entry_points
from typing import Protocol, cast

from drain.errors import ConfigError
from drain.wire import Consumer
from drain.workers.handover.journal import Journal
from drain.workers.options import PlainOptions, WorkOptions
from drain.workers.process.inbox import Inbox
from drain.workers.process.shutdown import Shutdown

GROUP = "drain.plain_jobs"


class PlainJobs(Protocol):
    """Plain jobs of one worker process."""

    @property
    def pid(self) -> int:
        """Id of the process in which they run; 0 if there is none."""

    def wait_until_ready(self) -> None:
        """Wait, for a bounded time, until jobs can run."""

    def run(self) -> None:
        """Run jobs until the process shuts down; in a thread of its own."""

    def check(self) -> None:
        """Look after them, about once a second."""

    def end(self) -> None:
        """End what was started; no job runs any more."""


class NoPlainJobs:
    """Plain jobs where none may run."""

    pid = 0

    def __init__(self, *_: object) -> None:
        pass

    def wait_until_ready(self) -> None:
        """Return at once."""

    def run(self) -> None:
        """Return at once."""

    def check(self) -> None:
        """Look after nothing."""

    def end(self) -> None:
        """End nothing."""


class Handler(Protocol):
    """Module, or any object, that an entry point of the group names."""

    def check_options(self, options: PlainOptions) -> None:
        """Raise a ConfigError if the options cannot work; called before any process is started."""

    def start(
        self, redis_url: str, only_tracked: Collection[str], options: WorkOptions, name: str
    ) -> Callable[[Inbox, Shutdown, Journal, Consumer], PlainJobs]:
        """Start what runs plain jobs; called before the worker process has a thread or a connection.

        Args:
            redis_url: URL of Redis.
            only_tracked: Queues in which no plain job runs.
            options: Options of the command line.
            name: Name of RQ's worker, for RQ's tools.

        Returns:
            Called once the worker process has the inbox of these jobs, its shutdown, the journal in which the
            supervisor reads that one runs, and its connection to Redis. `NoPlainJobs` refuses plain jobs in all queues.
        """


class NoHandler:
    """Handler where no package registers one."""

    def check_options(self, options: PlainOptions) -> None:
        """Accept all options."""

    def start(self, *_: object) -> Callable[..., NoPlainJobs]:
        """Start nothing."""
        return NoPlainJobs


@cache
def handler() -> Handler:
    """Import the handler.

    Raises:
        ConfigError: It cannot be imported, or several packages register one.
    """
    found = list(entry_points(group=GROUP))
    if len(found) > 1:
        names = " and ".join(sorted(entry.value for entry in found))
        raise ConfigError(f"{names} both run plain RQ jobs; uninstall one of the packages")
    try:
        return cast(Handler, found[0].load()) if found else NoHandler()
    # The code of a module may raise anything while it is imported.
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(
            f"{found[0].value}, which runs plain RQ jobs, cannot be imported: {reason}"
        ) from error

"""Seam for an extension that runs plain (untracked) RQ jobs.

It registers as the entry point `drain.plain_jobs`; without one, plain jobs are refused.
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
    """Plain jobs of a process."""

    @property
    def pid(self) -> int:
        """Id of their process, or 0."""

    def wait_until_ready(self) -> None:
        """Wait, bounded, until jobs can run."""

    def run(self) -> None:
        """Run jobs until shutdown; in its own thread."""

    def check(self) -> None:
        """Check on them, about once a second."""

    def end(self) -> None:
        """End anything started; no job runs any more."""


class NoPlainJobs:
    """Refusal of plain jobs."""

    pid = 0

    def __init__(self, *_: object) -> None:
        pass

    def wait_until_ready(self) -> None:
        """Do nothing."""

    def run(self) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Handler(Protocol):
    """Target of the entry point."""

    def check_options(self, options: PlainOptions) -> None:
        """Raise ConfigError for unusable options."""

    def start(
        self, redis_url: str, only_tracked: Collection[str], options: WorkOptions, name: str
    ) -> Callable[[Inbox, Shutdown, Journal, Consumer], PlainJobs]:
        """Start the runner of plain jobs before the process has threads or connections.

        Args:
            only_tracked: Queues without plain jobs.

        Returns:
            Called once its arguments exist; `NoPlainJobs` refuses plain jobs everywhere.
        """


class NoHandler:
    """Handler without an extension."""

    def check_options(self, options: PlainOptions) -> None:
        """Accept all options."""

    def start(self, *_: object) -> Callable[..., NoPlainJobs]:
        """Start nothing."""
        return NoPlainJobs


@cache
def handler() -> Handler:
    """Import the handler.

    Raises:
        ConfigError: It cannot be imported, or there are several.
    """
    found = list(entry_points(group=GROUP))
    if len(found) > 1:
        names = " and ".join(sorted(entry.value for entry in found))
        raise ConfigError(f"{names} both run plain RQ jobs; uninstall one of the packages")
    try:
        return cast(Handler, found[0].load()) if found else NoHandler()
    # An import may raise anything.
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(
            f"{found[0].value}, which runs plain RQ jobs, cannot be imported: {reason}"
        ) from error

"""Extensions of the leader: measurements and HTTP answers from other packages.

They register in the entry point group `drain.leader`: `beacon = "shop.beacon:Beacon"`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Protocol

import psycopg

from drain.config import Settings
from drain.database.postgres import Connection
from drain.read.waiting_by_cause import Waiting

log = logging.getLogger(__name__)

GROUP = "drain.leader"


class LeaderExtension(Protocol):
    """Extension made from the `Settings`; answers paths with the prefix `path`, such as `/scale/`."""

    path: str

    def measure(
        self, connection: Connection, queues: Collection[str], waiting: Mapping[str, Waiting]
    ) -> None:
        """Measure, every few seconds, on the draining thread, in autocommit mode.

        Args:
            queues: Queues with their own labels.
        """

    def answer(self, path: str, query: str) -> tuple[int, bytes]:
        """Return status and JSON, on a separate thread, in a leader or standby.

        Args:
            path: Path behind `self.path`.
        """

    def clear(self) -> None:
        """Remove the metrics: this process no longer leads, or cannot measure."""


class Extensions:
    """Loaded extensions; one that fails to measure has no metrics until it succeeds."""

    def __init__(self, settings: Settings) -> None:
        self._loaded = dict(_load(settings))
        self._failed: set[str] = set()

    @property
    def answers(self) -> dict[str, Callable[[str, str], tuple[int, bytes]]]:
        """Functions by path."""
        return {each.path: each.answer for each in self._loaded.values()}

    def measure(
        self, connection: Connection, queues: Collection[str], waiting: Mapping[str, Waiting]
    ) -> None:
        """Measure all."""
        for name, extension in self._loaded.items():
            try:
                extension.measure(connection, queues, waiting)
                self._failed.discard(name)
            except psycopg.OperationalError:
                raise
            # Third-party code. Its last measurements must not look current.
            except Exception as error:  # noqa: BLE001
                _clear(name, extension)
                if name not in self._failed:
                    _warn(name, "cannot measure", error)
                self._failed.add(name)

    def clear(self) -> None:
        """Remove all metrics."""
        for name, extension in self._loaded.items():
            _clear(name, extension)


def _clear(name: str, extension: LeaderExtension) -> None:
    try:
        extension.clear()
    except Exception as error:  # noqa: BLE001
        _warn(name, "cannot clear its metrics", error)


def _load(settings: Settings) -> Iterator[tuple[str, LeaderExtension]]:
    for entry in entry_points(group=GROUP):
        try:
            yield entry.name, entry.load()(settings)
        # An import may raise anything.
        except Exception as error:  # noqa: BLE001
            _warn(entry.name, "cannot be loaded", error)


def _warn(name: str, state: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    log.warning("leader extension %s %s: %s", name, state, reason, extra={"event": "extension_failed"})

"""Service level objectives of flows, measured by the leader.

A flow counts once: in `FINISHED` when it ends, and in `LATE` as soon as its time is over, since a failed flow may never
end. Only names that the file declares get labels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg
from prometheus_client import Counter, Histogram

from drain.admission import declared
from drain.database.postgres import Connection
from drain.errors import ConfigError
from drain.jobs.objectives import TARGETS, Objective
from drain.read import unfinished_flows

log = logging.getLogger(__name__)

FINISHED = Histogram(
    "drain_flow_seconds", "Time from staging to end, of flows with an SLO.", ["flow"], buckets=TARGETS
)
LATE = Counter("drain_late_flows", "Flows that did not finish within the time of their SLO.", ["flow"])


class FlowObjectives:
    """Counts finished and late flows of the names in a queue file, which is read again once it has changed.

    Raises:
        OSError: The file cannot be read.
        ConfigError: It is invalid.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._objectives: Mapping[str, Objective] = {}
        self._version: tuple[int, ...] | None = None
        self._warned = ""
        # Late flows at the last look, and those that were counted.
        self._known: set[int] | None = None
        self._counted: set[int] = set()
        if file is not None:
            self._read(file)

    def ended(self, connection: Connection, ids: Sequence[int]) -> None:
        """Observe the flows among markers that have just finished."""
        if not ids or not self._objectives:
            return
        try:
            found = unfinished_flows.ended(connection, ids, self._objectives)
        except psycopg.Error as error:
            if connection.closed:
                raise
            self._warn(f"drain_flow_seconds is not measured ({error.diag.message_primary})")
            return
        for flow_id, name, seconds in found:
            FINISHED.labels(name).observe(seconds)
            if seconds > self._objectives[name].seconds and flow_id not in self._counted:
                LATE.labels(name).inc()

    def look(self, connection: Connection) -> None:
        """Count flows that have become late since the last look, and read a changed file."""
        self._read_again()
        if not self._objectives:
            return
        limits = {name: objective.seconds for name, objective in self._objectives.items()}
        late = unfinished_flows.late(connection, limits)
        # At the first look, the last leader may have counted them.
        new = late.keys() - (late.keys() if self._known is None else self._known)
        for flow_id in new:
            LATE.labels(late[flow_id]).inc()
        self._known = set(late)
        self._counted = (self._counted | new) & self._known

    def forget(self) -> None:
        """Forget late flows: another process may lead next."""
        self._known = None
        self._counted = set()

    def _read_again(self) -> None:
        if self._file is None:
            return
        try:
            self._read(self._file)
        except (OSError, ConfigError) as error:
            self._warn(f"SLOs of flows stay as they were: {error}")

    def _warn(self, text: str) -> None:
        if text != self._warned:
            log.warning("%s", text, extra={"event": "not_measured"})
        self._warned = text

    def _read(self, file: Path) -> None:
        status = file.stat()
        version = status.st_mtime_ns, status.st_size, status.st_ino
        if version == self._version:
            return
        objectives = declared.of_file(file, declared.objectives).flows
        self._version, self._warned = version, ""
        for name in self._objectives.keys() - objectives.keys():
            FINISHED.remove(name)
            LATE.remove(name)
        for name in objectives:
            # From 0: alerts miss growth in a series that begins at 1.
            FINISHED.labels(name)
            LATE.labels(name)
        if objectives != self._objectives:
            self.forget()
        self._objectives = objectives

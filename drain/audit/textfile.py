"""The result of an audit as metrics in a file, for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

import os
from pathlib import Path
from time import time

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from drain import metrics
from drain.audit.report import Report
from drain.errors import ConfigError
from drain.visible import visible


def check_writable(path: Path) -> None:
    """Check that a file can be written, before an audit that may take an hour.

    Raises:
        ConfigError: Its name does not end in .prom, or its directory is missing or may not be written to.
    """
    if path.suffix != ".prom":
        raise ConfigError(_refusal(path, "node_exporter reads only files whose names end in .prom"))
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(_refusal(path, "no such directory, or no right to write there"))


def write(path: Path, report: Report) -> None:
    """Write the metrics of an audit that has just ended: the file is replaced as a whole.

    Raises:
        ConfigError: The file cannot be written.
    """
    registry = CollectorRegistry()
    for (name, text), value in (
        (metrics.AUDIT_BREACHES, len(report.breaches)),
        (metrics.AUDIT_UNCHECKED, len(report.unchecked)),
        (metrics.AUDIT_TIMESTAMP, time()),
    ):
        Gauge(name, text, registry=registry).set(value)
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigError(_refusal(path, error.strerror or "unknown")) from error


def _refusal(path: Path, reason: str) -> str:
    return f"cannot write {visible(str(path))} ({reason}); choose another --textfile"

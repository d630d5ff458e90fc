"""What the faults have led to: takeovers, redeliveries, refusals."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drain.database.postgres import Connection
from tests.soak.tables import value

# The other kinds need several claims in any case.
_AGAIN = """
SELECT count(*) FROM finished_jobs JOIN wanted ON job_id = id
WHERE fencing_token > 1 AND superseded_by IS NULL AND kind IN ('settle', 'group', 'send', 'slow', 'parent', 'follow')
"""
_GAVE_WAY = "SELECT count(*) FROM finished_jobs WHERE superseded_by IS NOT NULL"
_REFUSED = "SELECT count(*) FROM stale_finishes"
_SENT_TWICE = "SELECT count(*) FROM (SELECT FROM sent GROUP BY job_id HAVING count(*) > 1) AS twice"
_PUSHED_AGAIN = re.compile(r"pushed (\d+) jobs? again: (.*)")


def count(connection: Connection, directory: Path) -> dict[str, int]:
    """How often, by what it was; from the tables, and from the logs of our own processes."""
    found: Counter[str] = Counter()
    for event in _events(directory):
        match event["event"]:
            case "leading":
                found["an enqueuer began to lead"] += 1
            case "redis_lost":
                found["Redis was found to have lost its memory"] += 1
            case "lease_lost":
                found["a running job lost its lease"] += 1
            case "worker_died":
                found["a worker process died, and another one took its place"] += 1
            case "redelivered":
                match = _PUSHED_AGAIN.fullmatch(event["message"])
                if match:
                    found[f"a job was pushed again: {match[2]}"] += int(match[1])
    return {
        **dict(sorted(found.items())),
        "a job needed more than one claim": value(connection, _AGAIN),
        "an outcome was refused as stale": value(connection, _REFUSED),
        "a job gave way to another one with its unique key": value(connection, _GAVE_WAY),
        "what a job did elsewhere happened twice": value(connection, _SENT_TWICE),
    }


def shorten_logs(directory: Path) -> None:
    """Empty the logs, which processes append to."""
    for log in directory.glob("*.log"):
        os.truncate(log, 0)


def _events(directory: Path) -> Iterator[dict[str, Any]]:
    for log in directory.glob("*.log"):
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"event"' in line:
                    try:
                        event = json.loads(line)
                    except ValueError:
                        # A killed process may have left half a line.
                        continue
                    yield event

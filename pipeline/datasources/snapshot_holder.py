"""Process of `snapshot.hold`."""

from __future__ import annotations

import json
import os
import sys
from time import monotonic, sleep
from typing import Any

from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.pipeline.datasources import snapshot

_LOOK_SECONDS = 1.0
_READERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"


def main() -> None:
    """Export the snapshot ordered on standard input, and hold it while used."""
    order = json.loads(sys.stdin.readline())
    try:
        connection = postgres.connect(order["database_url"], "drain snapshot")
        with connection, snapshot.exported(connection, [order["table"]]) as name:
            _answer({"snapshot": name})
            _hold_while_used(connection, name, order["unused_seconds"], order["spark"])
    except DrainError as error:
        _answer({"error": str(error)})


def _answer(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201  (the answer of a program to a program)


def _hold_while_used(connection: Connection, name: str, unused_seconds: float, spark: int) -> None:
    used_at = monotonic()
    while monotonic() - used_at < unused_seconds and _is_alive(spark):
        (readers,) = postgres.fetch_one(connection, _READERS, (snapshot.READER.format(name),))
        if readers:
            used_at = monotonic()
        sleep(_LOOK_SECONDS)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    main()

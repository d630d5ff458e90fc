"""A worker's connection to PostgreSQL, which it opens when it needs it, and anew whenever it broke."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar
from uuid import UUID

from drain import postgres, schema
from drain.errors import UnavailableError
from drain.postgres import Connection
from drain.transitions import state

log = logging.getLogger(__name__)
T = TypeVar("T")

# How long PostgreSQL may be away before a claim or an outcome is left to redelivery.
PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.25
_STATEMENT_SECONDS = 10
# Longer than any statement may take: the server, or what stands between, has stopped answering.
_STALLED_SECONDS = 15.0
# Whatever the tables hold, and the statistics say of them, jobs are looked up by their ids. A table that was empty
# when somebody looked, and is full of dead rows since, is otherwise read as a whole for each batch: under a snapshot
# that was held for a minute, 38,000 jobs a second became 234.
_BY_ID = "; ".join(f"SET enable_{way} = off" for way in ("seqscan", "bitmapscan", "nestloop", "mergejoin"))


def look_up_by_id(connection: Connection) -> None:
    """Let statements on this connection find jobs by their ids, and in no other way."""
    # Others would inherit it.
    if not postgres.is_pooled(connection):
        connection.execute(_BY_ID.encode())


@dataclass(slots=True)
class Database:
    """One connection, for one thread.

    Attributes:
        url: Where.
        connection: Opened when it is needed.
        installation: What tells this database's jobs from all others; known once it has been connected.
    """

    url: str
    connection: Connection | None = None
    installation: UUID | None = None

    def ask(self, statement: Callable[[Connection], T], patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Execute one statement, on a new connection if the old one broke, until patience ends.

        Raises:
            UnavailableError: PostgreSQL stayed away.
        """
        deadline = monotonic() + patience_seconds
        while True:
            try:
                with postgres.reachable(self.url):
                    connection = self._connected()
                    with postgres.time_limit(connection, _STALLED_SECONDS):
                        return statement(connection)
            except UnavailableError as error:
                self.close()
                if monotonic() > deadline:
                    raise
                log.warning("%s; trying again", error)
                sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _connected(self) -> Connection:
        if self.connection is None or self.connection.closed:
            connection = postgres.connect(self.url, "drain work")
            with postgres.time_limit(connection, _STALLED_SECONDS):
                postgres.set_bounds(
                    connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_STATEMENT_SECONDS
                )
                look_up_by_id(connection)
                schema.check_once(connection)
                self.installation = state.installation(connection)
            self.connection = connection
        return self.connection

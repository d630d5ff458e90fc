"""Connection of one thread to PostgreSQL, reopened whenever it breaks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TypeVar

import psycopg

from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.database.url import conninfo
from drain.errors import UnavailableError
from drain.workers.stores import POSTGRES, Stores, is_outage, is_stale

log = logging.getLogger(__name__)
T = TypeVar("T")

# Then a claim or outcome is left to redelivery.
PATIENCE_SECONDS = 30.0
APPLICATION_NAME = "drain work"
_PAUSE_SECONDS = 0.25
_STATEMENT_SECONDS = 10
# Longer than any statement's timeout: the server, or a proxy, has stopped answering.
_STALLED_SECONDS = 15.0
# Jobs are looked up by id and locked in that order, independent of statistics: a table analyzed while empty and
# full of dead rows since would be read whole per batch. Under a snapshot held for a minute, 38,000 jobs/s became 234.
# Nothing is set through a pooler, which keeps no plans.
#
# One plan for all parameters: a custom plan per single claim costs 0.20 instead of 0.12 ms.
_BY_ID = {"enable_seqscan": "off", "enable_bitmapscan": "off", "plan_cache_mode": "force_generic_plan"}


def session(seconds: int = _STATEMENT_SECONDS) -> dict[str, str]:
    """Return settings for look-ups by id, with timeouts of statements and locks."""
    return _BY_ID | postgres.session_settings(statement_seconds=seconds, lock_seconds=seconds)


def prepare(url: str) -> None:
    """Precompute connection parameters for processes forked later."""
    conninfo(url, APPLICATION_NAME, session())


@dataclass(slots=True)
class Database:
    """Connection of one thread.

    Attributes:
        asks_first: Check a new connection before its first statement.
    """

    url: str
    asks_first: bool = True
    connection: Connection | None = None
    stores: Stores = field(default_factory=Stores)

    def ask(self, statement: Callable[[Connection], T], patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Execute one statement, reconnecting until patience ends.

        Raises:
            UnavailableError: PostgreSQL stayed unavailable.
        """
        deadline = monotonic() + patience_seconds
        is_logged = False
        while True:
            began, was_open = monotonic(), self.connection is not None
            try:
                answer = self._ask_once(statement)
            except UnavailableError as error:
                self.close()
                is_over = monotonic() > deadline
                if not is_outage(error):
                    if not (is_logged or is_over):
                        log.warning(
                            "%s; trying again for %g s",
                            error,
                            patience_seconds,
                            extra={"event": "tried_again"},
                        )
                    is_logged = True
                elif is_over or not (was_open and is_stale(began)):
                    self.stores.failed(error)
                if is_over:
                    raise
                sleep(_PAUSE_SECONDS)
            else:
                self.stores.answered(POSTGRES, began)
                return answer

    def _ask_once(self, statement: Callable[[Connection], T]) -> T:
        with postgres.reachable(self.url):
            connection = self._connected()
            with postgres.time_limit(connection, _STALLED_SECONDS):
                return statement(connection)

    def send_hint(self, statement: Callable[[Connection], object]) -> bool:
        """Send the leader a hint, if connected; return whether it was sent. Failures count as no outage."""
        connection = self.connection
        if connection is None or connection.closed:
            return False
        try:
            with postgres.time_limit(connection, _STALLED_SECONDS):
                statement(connection)
        except psycopg.Error as error:
            log.debug("the leader was not notified: %s", error, extra={"event": "not_notified"})
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _connected(self) -> Connection:
        if self.connection is None or self.connection.closed:
            self.connection = self._asked() if self.asks_first else self._dialled()
        return self.connection

    def _asked(self) -> Connection:
        connection = postgres.connect(self.url, APPLICATION_NAME, settings=session())
        try:
            with postgres.time_limit(connection, _STALLED_SECONDS):
                schema.check_once(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _dialled(self) -> Connection:
        connection = postgres.dial(self.url, APPLICATION_NAME, settings=session())
        connection.prepare_threshold = None
        return connection

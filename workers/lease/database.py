"""Connection of one thread of a worker to PostgreSQL: opened when it is needed, and again whenever it broke."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TypeVar

from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.database.url import conninfo
from drain.errors import UnavailableError
from drain.workers.stores import POSTGRES, Stores, is_outage, is_stale

log = logging.getLogger(__name__)
T = TypeVar("T")

# Outage of PostgreSQL after which a claim or an outcome is left to redelivery.
PATIENCE_SECONDS = 30.0
APPLICATION_NAME = "drain work"
_PAUSE_SECONDS = 0.25
_STATEMENT_SECONDS = 10
# Timeout for one exchange, longer than that of any statement: the server, or a proxy before it, has stopped answering.
_STALLED_SECONDS = 15.0
# Whatever the tables hold, and the statistics say of them, jobs are looked up by their ids, and locked in the order of
# these. A table that was empty when it was analyzed, and is full of dead rows since, is otherwise read as a whole for
# each batch: under a snapshot that was held for a minute, 38,000 jobs a second became 234. Every statement of a worker
# has an index for whatever it reads, so no plan that is disabled here is ever needed. Through a pooler nothing is set,
# and no plan is kept either: it is made for the table as it is.
#
# So one plan serves for all parameters. By default the server makes another plan for each claim of a single job: 0.20
# instead of 0.12 ms.
_BY_ID = {"enable_seqscan": "off", "enable_bitmapscan": "off", "plan_cache_mode": "force_generic_plan"}


def session(seconds: int = _STATEMENT_SECONDS) -> dict[str, str]:
    """Return the settings of a session that looks jobs up by their ids, with timeouts for statements and locks."""
    return _BY_ID | postgres.session_settings(statement_seconds=seconds, lock_seconds=seconds)


def prepare(url: str) -> None:
    """Put the parameters of a connection together, so that processes forked from here on need not.

    Raises:
        ConfigError: The URL cannot be read.
    """
    conninfo(url, APPLICATION_NAME, session())


@dataclass(slots=True)
class Database:
    """One connection, for one thread.

    Attributes:
        url: URL of the database.
        asks_first: A new connection is asked for its session and its schema before it is used. If not, the first
            statement answers both, and nothing is prepared before.
        connection: Opened when it is needed.
        stores: State of PostgreSQL, to which each answer and failure is reported.
    """

    url: str
    asks_first: bool = True
    connection: Connection | None = None
    stores: Stores = field(default_factory=Stores)

    def ask(self, statement: Callable[[Connection], T], patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Execute one statement, on a new connection if the old one broke, until patience ends.

        Raises:
            UnavailableError: PostgreSQL stayed away.
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

"""Held queues: their rules cannot be followed, so nothing of them leaves until the rules change.

A limit that is not followed would be exceeded, and an error that ends the leader would stop all queues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg

from drain.database.postgres import Connection
from drain.errors import ConfigError
from drain.tables import rules
from drain.tables.rules import RulesRow

log = logging.getLogger(__name__)

# Errors that values cause: those of a rule, or of a computation with them here or on the server.
_OF_VALUES = (ConfigError, ArithmeticError, ValueError, psycopg.DataError)


class HeldError(Exception):
    """The rules of a queue have failed within a transaction."""


class HeldQueues:
    """Queues whose rules have failed, each with the reason.

    Args:
        connection: The leader's.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: Mapping[str, RulesRow] = {}
        self._reasons: dict[str, str] = {}
        self._may_note = True

    def __contains__(self, queue: str) -> bool:
        return queue in self._reasons

    @property
    def names(self) -> frozenset[str]:
        """Names of the queues."""
        return frozenset(self._reasons)

    def follow(self, rows: Mapping[str, RulesRow]) -> None:
        """Hold only the queues whose rows have not changed since they failed."""
        before, self._rows = self._rows, {queue: row._replace(error=None) for queue, row in rows.items()}
        self._reasons = {
            queue: reason
            for queue, reason in self._reasons.items()
            if queue in self._rows and self._rows[queue] == before.get(queue)
        }

    @contextmanager
    def unless_followed(self, queue: str) -> Iterator[None]:
        """Hold the queue if the block, which follows its rules, raises an error that their values cause."""
        try:
            yield
        except _OF_VALUES as error:
            line = str(error).partition("\n")[0] or type(error).__name__
            reason = line.removeprefix(f"queue {queue}: ")
            self._reasons[queue] = reason
            log.error(
                "queue %s is held until its rules are changed: %s",
                queue,
                reason,
                extra={"event": "queue_held", "queue": queue},
            )

    def note(self, rows: Mapping[str, RulesRow]) -> None:
        """Note in the table, in autocommit mode, why queues are held, unless their rows say so already."""
        wrong = {
            queue: reason for queue, row in rows.items() if row.error != (reason := self._reasons.get(queue))
        }
        if not wrong or not self._may_note:
            return
        try:
            rules.note_errors(self._connection, wrong)
        except (psycopg.IntegrityError, psycopg.ProgrammingError) as error:
            # The queues are held all the same.
            self._may_note = False
            log.warning(
                "cannot note in the table queues why queues are held: %s",
                str(error).partition("\n")[0],
                extra={"event": "queues_not_noted"},
            )

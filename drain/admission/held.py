"""Held queues: their rules cannot be applied, so no job leaves until they change.

Ignoring a limit would exceed it, and failing would stop all queues.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import psycopg

from drain.admission.rules import Rules
from drain.database.postgres import Connection
from drain.errors import ConfigError
from drain.tables import rules as ruled
from drain.tables.rules import RulesRow

log = logging.getLogger(__name__)

# Caused by values, here or on the server.
_OF_VALUES = (ConfigError, ArithmeticError, ValueError, psycopg.DataError)


class HeldError(Exception):
    """A queue's rules failed in a transaction."""


def warn_of_forward_mode(rules: Rules, forward_queues: Collection[str]) -> None:
    """Warn of rules that forward mode ignores."""
    if rules.queue in forward_queues and rules.looks_at_running:
        log.warning(
            "queue %s is in forward mode: its running jobs are unknown, so they are not limited",
            rules.queue,
            extra={"event": "rules_not_followed", "queue": rules.queue},
        )


class HeldQueues:
    """Queues whose rules failed, with reasons."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reasons: dict[str, str] = {}
        # Their rows may be outdated.
        self._to_note: set[str] = set()
        self._may_note = True

    def __contains__(self, queue: str) -> bool:
        return queue in self._reasons

    @property
    def names(self) -> frozenset[str]:
        """Held queues."""
        return frozenset(self._reasons)

    def release(self, queue: str) -> None:
        """Release a queue with changed rules."""
        self._reasons.pop(queue, None)

    @contextmanager
    def unless_followed(self, queue: str) -> Iterator[None]:
        """Hold the queue if the values of its rules make the block fail."""
        try:
            yield
        except _OF_VALUES as error:
            line = str(error).partition("\n")[0] or type(error).__name__
            reason = line.removeprefix(f"queue {queue}: ")
            self._reasons[queue] = reason
            self._to_note.add(queue)
            log.error(
                "queue %s is held until its rules are changed: %s",
                queue,
                reason,
                extra={"event": "queue_held", "queue": queue},
            )

    def note(self, rows: Mapping[str, RulesRow], changed: Iterable[str]) -> None:
        """Write why queues are held, if their rows do not say so; in autocommit mode."""
        self._to_note.update(changed)
        self._to_note = {
            queue for queue in self._to_note & rows.keys() if rows[queue].error != self._reasons.get(queue)
        }
        if not self._to_note or not self._may_note:
            return
        wrong = {queue: self._reasons.get(queue) for queue in self._to_note}
        try:
            ruled.note_errors(self._connection, wrong)
        except (psycopg.IntegrityError, psycopg.ProgrammingError) as error:
            # They are held anyway.
            self._may_note = False
            log.warning(
                "cannot record in the table queues why queues are held: %s",
                str(error).partition("\n")[0],
                extra={"event": "queues_not_noted"},
            )

"""Chores: small pieces of maintenance that the leader does beside the drain, each after a pause of its own."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from math import inf
from time import monotonic
from typing import ClassVar

import psycopg

from drain.database.postgres import Connection
from drain.enqueuer.pacer import Pacer

log = logging.getLogger(__name__)


class Chore(ABC):
    """Maintenance of one kind. The leader calls `run_once` about once a second, which most often does nothing.

    Args:
        connection: The leader's, in autocommit mode, at read committed.

    Attributes:
        pause_seconds: Shortest time between two pieces of work.
        goes_on: True if a piece that did something is followed by the next one without that pause.
        in_use: Errors that mean that others use the table: the next piece is tried after the pause.
        refused_text: Warning, without the reason, about a database that refuses the chore. It is logged once.
        refused_event: Event of that warning.
        gives_up: True if the chore is not tried again after a refusal.
    """

    pause_seconds: ClassVar[float]
    goes_on: ClassVar[bool] = False
    in_use: ClassVar[tuple[type[psycopg.Error], ...]] = ()
    refused_text: ClassVar[str]
    refused_event: ClassVar[str]
    gives_up: ClassVar[bool] = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pacer = Pacer(self.pause_seconds)
        self._was_refused = False

    def run_once(self) -> int:
        """Do one piece of work if the pause is over; returns how much was done: 0 if there was nothing to do.

        Raises:
            psycopg.OperationalError: The database.
        """
        if not self._pacer.is_due() or (self.gives_up and self._was_refused):
            return 0
        began = monotonic()
        done = self._try_to_work()
        if not done:
            # To find that nothing can be done may take long; then the next attempt is put off for longer.
            self._pacer.ran_for(monotonic() - began)
        elif not self.goes_on:
            self._pacer.ran_for(0.0)
        return done

    def _try_to_work(self) -> int:
        try:
            return self._work()
        except self.in_use:
            return 0
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            # The drain goes on without the chore: a person has to mend what refuses it.
            if not self._was_refused:
                reason = str(error).partition("\n")[0]
                log.warning("%s: %s", self.refused_text, reason, extra={"event": self.refused_event})
            self._was_refused = True
            return 0

    def seconds_to_next(self) -> float:
        """Return the time after which the chore wants to be called earlier than usual; infinity if it does not."""
        return inf

    @abstractmethod
    def _work(self) -> int:
        """Do one piece of work; returns how much was done."""

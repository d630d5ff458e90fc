"""Maintenance that the leader repeats between batches."""

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
    """Maintenance of one kind; `run_once` is called about once a second.

    Attributes:
        goes_on: No pause after useful work.
        in_use: Errors of a table in use: retry after the pause.
        refused_text: Warning, logged once.
        gives_up: Never retry after a refusal.
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
        """Do one piece of work, if due; return how much."""
        if not self._pacer.is_due() or (self.gives_up and self._was_refused):
            return 0
        began = monotonic()
        done = self._try_to_work()
        if not done:
            # Even finding nothing may take a while.
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
            # An operator must fix it; the drain continues.
            if not self._was_refused:
                reason = str(error).partition("\n")[0]
                log.warning("%s: %s", self.refused_text, reason, extra={"event": self.refused_event})
            self._was_refused = True
            return 0

    def seconds_to_next(self) -> float:
        """Seconds until an early call; infinity for none."""
        return inf

    @abstractmethod
    def _work(self) -> int:
        """Return how much was done."""

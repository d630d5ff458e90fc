"""Measurement that may be refused without harm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

import psycopg

from drain.database.postgres import Connection
from drain.enqueuer.pacer import Pacer

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 5.0
_REFUSED_PAUSE_SECONDS = 60.0


class OptionalGauge:
    """Gauge that `measure` sets, in autocommit mode."""

    def __init__(
        self, name: str, measure: Callable[[Connection], None], pause_seconds: float = _PAUSE_SECONDS
    ) -> None:
        self._name = name
        self._measure = measure
        self._pacer = Pacer(pause_seconds)
        self._refused_until = 0.0
        self._was_refused = False

    def run_once(self, connection: Connection) -> None:
        """Measure if due; warn of a refusal once until a success.

        Raises:
            psycopg.Error: The connection is broken.
        """
        began = monotonic()
        if not self._pacer.is_due() or began < self._refused_until:
            return
        try:
            self._measure(connection)
        except psycopg.Error as error:
            if connection.closed:
                raise
            self._refused_until = began + _REFUSED_PAUSE_SECONDS
            if not self._was_refused:
                reason = error.diag.message_primary or str(error).partition("\n")[0]
                log.warning("%s is not measured (%s)", self._name, reason, extra={"event": "not_measured"})
            self._was_refused = True
        else:
            self._was_refused = False
        self._pacer.ran_for(monotonic() - began)

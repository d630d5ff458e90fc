"""Term as leader: drain, redelivery, chores, sleep."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event
from time import monotonic

from drain.enqueuer.chores import Chore
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.gauges import Gauges
from drain.enqueuer.health import Health
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.sleeper import Sleeper
from drain.enqueuer.waits import Waits

log = logging.getLogger(__name__)

# Between rounds of redelivery and chores; and while retries wait for room.
_REDELIVERY_SECONDS = 1.0
_HELD_BACK_SECONDS = 0.1
# Share of retries in a round. Measured without: other jobs waited for 8 s behind 3,000 queues of expired leases.
_RETRIES_SECONDS = 0.25


class Term:
    """Work of a leader until `stop`."""

    def __init__(
        self,
        enqueuer: Enqueuer,
        chores: Sequence[Chore],
        *,
        gauges: Gauges,
        health: Health,
        stop: Event,
        poll_seconds: float,
    ) -> None:
        self._enqueuer = enqueuer
        self._chores = chores
        self._gauges = gauges
        self._health = health
        self._stop = stop
        self._redelivery = Redelivery(enqueuer, alive=self._alive)
        self._waits = Waits(enqueuer, self._redelivery)
        self._sleeper = Sleeper(enqueuer, stop, poll_seconds)
        self._redeliver_at = 0.0

    def run(self) -> None:
        """Lead until stopped."""
        self._gauges.begin(self._enqueuer.connection)
        try:
            self._begin()
            while not self._stop.is_set():
                moved = self.run_once()
                if moved:
                    self._sleeper.begin_with_short_naps()
                if not moved or not self._enqueuer.may_leave_some:
                    self._sleeper.sleep(self._redeliver_at)
        finally:
            self._gauges.clear()
            self._health.forget_failing()

    def run_once(self) -> int:
        """Drain, then do other due work; return how many jobs moved."""
        self._health.alive()
        moved = self._enqueuer.drain(keep_on=self._nothing_else_is_due, looks_again=False)
        if not self._nothing_is_due():
            self._enqueuer.matcher.redelivered()
            moved += self._redelivery.run_once(_RETRIES_SECONDS)
            self._health.report_failing(self._redelivery.failing_queues)
            for chore in self._chores:
                chore.run_once()
            pause = _HELD_BACK_SECONDS if self._redelivery.is_held_back else _REDELIVERY_SECONDS
            earlier = (chore.seconds_to_next() for chore in self._chores)
            self._redeliver_at = monotonic() + min([pause, *earlier])
        self._gauges.run_once(self._enqueuer, self._waits)
        return moved

    def do_all(self) -> int:
        """Do all due work; return how many jobs went to Redis."""
        redelivered = self._redelivery.recover()
        self._enqueuer.unblock_all()
        self._enqueuer.matcher.run_all()
        self._enqueuer.drain(keep_on=self._health.is_alive)
        redelivered += self._redelivery.run_once()
        for chore in self._chores:
            while chore.run_once():
                self._health.alive()
        # Jobs staged by schedules.
        self._enqueuer.drain(keep_on=self._health.is_alive)
        return redelivered + self._enqueuer.delivered

    def _alive(self) -> None:
        self._health.alive()
        # A million redeliveries take a minute.
        self._enqueuer.note_notifications()

    def _begin(self) -> None:
        self._redelivery.recover()
        # Up only after a push: an answering Redis may still refuse jobs, and pauses between terms grow until `up`.
        self._enqueuer.drain(keep_on=lambda: False)
        self._health.up("leading")
        log.info("now the leader", extra={"event": "leading"})

    def _nothing_else_is_due(self) -> bool:
        return not self._stop.is_set() and self._nothing_is_due()

    def _nothing_is_due(self) -> bool:
        return monotonic() < self._redeliver_at and not self._enqueuer.matcher.has_resumed

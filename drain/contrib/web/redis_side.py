"""Knowledge of Redis, for pages that do without it: after an error it is left alone for a while."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from drain.errors import UnavailableError
from drain.wire import Producer

T = TypeVar("T")

# Time for which a Redis that has not answered is not asked again, in seconds. A silent one would take five seconds of
# each page.
_AWAY_SECONDS = 5.0


class RedisSide:
    """Asks Redis, and remembers that it is away.

    Args:
        producer: Client that only looks; None if no Redis is named.
    """

    def __init__(self, producer: Producer | None) -> None:
        self._producer = producer
        self._away_until = 0.0
        self._problem = "" if producer else "no Redis is named (DRAIN_REDIS_URL)"

    @property
    def problem(self) -> str:
        """Reason why nothing is known of Redis now; "" if it has answered."""
        return self._problem

    @property
    def producer(self) -> Producer | None:
        """Client that only looks; None if no Redis is named, or it is away."""
        return None if monotonic() < self._away_until else self._producer

    def ask(self, question: Callable[[Producer], T]) -> T | None:
        """Ask a question; None if no Redis is named, or it is away. `problem` then says why."""
        if (producer := self.producer) is None:
            return None
        try:
            answer = question(producer)
        except UnavailableError as error:
            self._away_until, self._problem = monotonic() + _AWAY_SECONDS, str(error)
            return None
        self._problem = ""
        return answer

    def close(self) -> None:
        """Close the connections."""
        if self._producer:
            self._producer.close()

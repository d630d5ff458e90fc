"""Hashes that could not be cleared while Redis was away are cleared later."""

from collections.abc import Sequence
from typing import cast

from drain.errors import UnavailableError
from drain.wire import Consumer
from drain.workers.execution.rq_books import RQBooks
from drain.workers.process.cleanup import UnclearedDeliveries
from drain.workers.stores import Stores


class Hashes:
    """Redis, which may be away."""

    def __init__(self) -> None:
        self.is_away = True
        self.cleared: list[str] = []
        self.cleared_unless_awaited: list[str] = []

    def clear(self, rq_ids: Sequence[str]) -> list[str]:
        if self.is_away:
            raise UnavailableError("Redis is away")
        self.cleared += rq_ids
        return [rq_id for rq_id in rq_ids if rq_id == "awaited"]

    def clear_unless_awaited(self, rq_ids: Sequence[str]) -> None:
        self.cleared_unless_awaited += rq_ids


class Books(RQBooks):
    """Books that show what was noted."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, str]] = []

    def finished(self, rq_id: str, queue: str) -> None:
        self.noted.append((rq_id, queue))


def test_deliveries_that_end_during_a_redis_outage_are_cleared_afterwards() -> None:
    hashes, books = Hashes(), Books()
    ended = UnclearedDeliveries(cast(Consumer, hashes), Stores(), books)
    ended.finished("awaited", "mail")
    ended.unfinished("failed")
    ended.clear()
    assert (hashes.cleared, hashes.cleared_unless_awaited) == ([], [])

    ended.finished("next", "mail")
    ended.unfinished("failed next")
    hashes.is_away = False
    ended.clear()
    ended.clear()
    assert hashes.cleared == ["awaited", "next"]
    assert hashes.cleared_unless_awaited == ["failed", "failed next"]
    assert books.noted == [("awaited", "mail")]

"""What becomes of an id that was taken by itself."""

from typing import Any, cast

import pytest

from drain.errors import UnavailableError
from drain.wire import AwaitedId, Consumer, PoppedId
from drain.workers.handover.journal import Journal
from drain.workers.lease.database import Database
from drain.workers.options import WorkOptions
from drain.workers.process.claimer import Claimer
from drain.workers.process.fetcher import Fetcher
from drain.workers.process.inbox import Inbox
from drain.workers.process.shutdown import Shutdown
from drain.workers.process.stale_deliveries import OvertakenDeliveries

FIRST = AwaitedId("rq:queue:default", b"test-1-10", is_suspended=False)


def popped(job_id: int) -> PoppedId:
    return PoppedId(f"test-{job_id}-{10 * job_id}", "default", job_id, 10 * job_id)


class Lists:
    """Redis, with an id that comes, and others that are there when they are looked for."""

    skips_lists = more_to_classify = leaves_plain = False

    def __init__(self) -> None:
        self.others: list[PoppedId] = []
        self.asked: list[tuple[str, int]] = []

    def wait(self, _seconds: float) -> AwaitedId:
        return FIRST

    def take(self, _awaited: AwaitedId) -> PoppedId:
        return popped(1)

    def pop(
        self, most: int, first: AwaitedId | None = None, *, taken: AwaitedId | None = None, plain: bool = True
    ) -> list[PoppedId]:
        how = "first" if first else "taken" if taken else ""
        self.asked.append((how, most))
        others, self.others = self.others, []
        return [*([popped(1)] if first else []), *others]


class Claims:
    """A claimer that notes what it is given."""

    def __init__(self) -> None:
        self.claimed: list[list[int | None]] = []
        self.error: Exception | None = None

    def claim(self, ids: list[PoppedId]) -> None:
        if self.error is not None:
            raise self.error
        self.claimed.append([each.job_id for each in ids])


class Nobody:
    """Whatever else the fetcher asks."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: None


@pytest.fixture
def lists() -> Lists:
    return Lists()


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
def fetcher(lists: Lists, claims: Claims) -> Fetcher:
    journal = Journal()
    shutdown = Shutdown(30, journal)
    inbox = Inbox(WorkOptions(queues=["default"], prefetch=10), journal, shutdown)
    fetcher = Fetcher(
        inbox,
        shutdown,
        cast(Consumer, lists),
        cast(Claimer, claims),
        cast(OvertakenDeliveries, Nobody()),
        Database(""),
        burst=False,
    )
    # As after a look at empty lists.
    fetcher._was_full = False
    return fetcher


def test_a_single_popped_id_is_claimed_first(fetcher: Fetcher, lists: Lists, claims: Claims) -> None:
    fetcher._run_once()
    assert claims.claimed == [[1]]
    assert lists.asked == [("taken", 9)]


def test_ids_popped_meanwhile_are_claimed_next_and_later_ones_together(
    fetcher: Fetcher, lists: Lists, claims: Claims
) -> None:
    lists.others = [popped(2), popped(3)]
    fetcher._run_once()
    lists.others = [popped(4)]
    fetcher._run_once()
    assert claims.claimed == [[1], [2, 3], [1, 4]]
    assert lists.asked == [("taken", 9), ("first", 10)]


def test_a_single_id_after_others_is_taken_singly_again(
    fetcher: Fetcher, lists: Lists, claims: Claims
) -> None:
    lists.others = [popped(2), popped(3)]
    for _ in range(3):
        fetcher._run_once()
    assert claims.claimed == [[1], [2, 3], [1], [1]]
    assert [how for how, _ in lists.asked] == ["taken", "first", "taken"]


def test_an_id_whose_claim_fails_leaves_the_intermediate_list(
    fetcher: Fetcher, lists: Lists, claims: Claims
) -> None:
    """The claimer has put it back into its list."""
    claims.error = UnavailableError("PostgreSQL is away")
    with pytest.raises(UnavailableError):
        fetcher._run_once()
    assert lists.asked == [("taken", 0)]
    claims.error = None
    fetcher._run_once()
    assert claims.claimed == [[1]]

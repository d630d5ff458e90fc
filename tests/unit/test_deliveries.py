"""The delivery numbers of a leader, its watermark, and when they are recorded."""

from typing import Any

import pytest

from drain.enqueuer.deliveries import Deliveries
from drain.tables import leader_progress
from drain.tables.leader_progress import Progress


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    numbers: list[tuple[int, int]] = []
    monkeypatch.setattr(leader_progress, "record_progress", lambda _, *both: numbers.append(both))
    return numbers


@pytest.fixture
def deliveries(recorded: list[tuple[int, int]]) -> Deliveries:
    connection: Any = None
    return Deliveries(connection, Progress(last_delivery=10, pushed_up_to=8))


def test_numbers_are_handed_out_again_after_a_rollback(
    deliveries: Deliveries, recorded: list[tuple[int, int]]
) -> None:
    deliveries.record(12)
    assert deliveries.last_delivery == 10
    deliveries.record(13)
    deliveries.committed(13)
    assert (deliveries.last_delivery, recorded) == (13, [(12, 8), (13, 8)])


def test_the_watermark_is_recorded_only_after_it_has_risen(
    deliveries: Deliveries, recorded: list[tuple[int, int]]
) -> None:
    deliveries.record_watermark()
    deliveries.pushed(10, ["mail"])
    for _ in range(2):
        deliveries.record_watermark()
    assert recorded == [(10, 10)]
    assert deliveries.queues == {"mail"}


def test_a_held_watermark_rises_to_the_last_number_at_the_end(deliveries: Deliveries) -> None:
    with deliveries.held_watermark():
        deliveries.committed(12)
        deliveries.pushed(11, ["mail"])
        assert deliveries.pushed_up_to == 8
    assert deliveries.pushed_up_to == 12


def test_a_held_watermark_stays_unchanged_if_a_push_fails(deliveries: Deliveries) -> None:
    def fail_to_push() -> None:
        with deliveries.held_watermark():
            deliveries.pushed(9, [])
            raise OSError("Redis")

    with pytest.raises(OSError, match="Redis"):
        fail_to_push()
    assert deliveries.pushed_up_to == 8

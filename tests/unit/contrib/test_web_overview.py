"""What the page derives from the numbers of a queue."""

from __future__ import annotations

import pytest

from drain.contrib.web.pages.overview import Glance
from drain.read.queue import Queue


@pytest.mark.parametrize(
    ("waiting", "per_second", "seconds"),
    [
        ({"due": 60, "limited": 30, "paused": 1_000, "scheduled": 1_000}, 1.5, 60.0),
        ({"paused": 1_000}, 1.5, None),
        ({"due": 60}, 0.0, None),
        ({}, 1.5, None),
    ],
)
def test_a_backlog_clears_at_the_rate_of_the_last_minute(
    waiting: dict[str, int], per_second: float, seconds: float | None
) -> None:
    glance = Glance("mail", Queue(waiting=waiting, per_second=per_second))
    assert glance.clears_in_seconds == seconds

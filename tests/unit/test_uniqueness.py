"""Which of the jobs with one unique key stands."""

from collections.abc import Sequence

import pytest

from drain.admission.uniqueness import decide
from drain.tables.unique import Candidate


def ready(
    id_: int, keep: str | None = None, quiet: float | None = None, left: float | None = None
) -> Candidate:
    return Candidate(id_, "ready", keep, quiet, left)


def scheduled(id_: int, keep: str | None = None, left: float = 5.0) -> Candidate:
    return Candidate(id_, "scheduled", keep, 10.0, left)


def inflight(id_: int, keep: str | None = None) -> Candidate:
    return Candidate(id_, "inflight", keep)


@pytest.mark.parametrize(
    ("candidates", "stands", "staged", "in_flight"),
    [
        pytest.param([ready(3), ready(2), ready(7)], 2, [3, 7], [], id="the first"),
        pytest.param([ready(3, "last"), ready(2, "last")], 3, [2], [], id="the last"),
        pytest.param([ready(2, "last"), ready(3, "first")], 2, [3], [], id="as the newest says: the first"),
        pytest.param([ready(2, "first"), ready(3, "last")], 3, [2], [], id="as the newest says: the last"),
        pytest.param([ready(2), inflight(3)], 3, [2], [], id="the one in flight, though its id is higher"),
        pytest.param([ready(4, "last"), inflight(3)], 4, [], [3], id="the last, and not the one in flight"),
        pytest.param([ready(2, "last"), inflight(3)], 3, [2], [], id="the one in flight, which is the last"),
        pytest.param([inflight(5), inflight(3)], 3, [], [5], id="the first in flight"),
        pytest.param([inflight(5, "last"), inflight(3)], 5, [], [3], id="the last in flight"),
        pytest.param(
            [ready(2), scheduled(3)], 2, [], [], id="no look at scheduled ones without a quiet time"
        ),
        pytest.param([ready(2, None, 10, -1), scheduled(3, "last")], 3, [2], [], id="the scheduled one"),
        pytest.param(
            [inflight(1), ready(2, None, 10, -1), scheduled(3)], 1, [2], [], id="the scheduled one stays"
        ),
    ],
)
def test_one_job_stands_and_the_others_give_way(
    candidates: Sequence[Candidate], stands: int, staged: list[int], in_flight: list[int]
) -> None:
    verdict = decide(candidates)
    assert (verdict.stands, sorted(verdict.staged), list(verdict.in_flight)) == (stands, staged, in_flight)
    assert verdict.seconds == 0


@pytest.mark.parametrize(
    ("candidates", "stands", "seconds"),
    [
        pytest.param([ready(1, None, 10, -3)], 1, 0, id="its time is over"),
        pytest.param([ready(1, None, 10, 4)], 1, 4, id="a row that was due before its time was over"),
        pytest.param([ready(1, None, 10, -3), scheduled(2, left=6)], 1, 6, id="as long as the newest"),
        pytest.param(
            [ready(1, None, 10, -3), ready(2, None, 10, 7)], 1, 7, id="as long as any that gives way"
        ),
        pytest.param([inflight(1), ready(2, None, 10, 7)], 1, 0, id="a job in flight waits for no other"),
    ],
)
def test_a_quiet_time_makes_the_standing_job_keep_waiting(
    candidates: Sequence[Candidate], stands: int, seconds: float
) -> None:
    verdict = decide(candidates)
    assert (verdict.stands, max(verdict.seconds, 0)) == (stands, seconds)

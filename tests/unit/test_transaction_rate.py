"""The rate of transaction ids."""

from math import inf

import pytest

from drain.enqueuer import transaction_rate
from drain.enqueuer.transaction_rate import TransactionRate


def test_the_rate_is_that_between_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(transaction_rate, "monotonic", lambda: now)
    rate = TransactionRate()
    rate.note("1000")
    assert rate.per_second == inf
    now += 0.01
    # Too soon.
    rate.note("1500")
    assert rate.per_second == inf
    now += 0.09
    rate.note("1200")
    assert rate.per_second == pytest.approx(2000)

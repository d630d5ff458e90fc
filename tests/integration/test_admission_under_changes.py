"""Admission while something else changes: retries that go away, pauses, dead jobs, queues of jobs."""

from __future__ import annotations

import pytest

from drain.admission import allowances, retries
from drain.admission.rules import Rate, Rules
from drain.tables import running
from tests.admitting import QUEUE, admitting, ids_of, retry_later, stage
from tests.helpers import query


def test_a_key_goes_on_though_the_retry_for_which_its_token_was_kept_is_gone(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowances, "_KEPT_SECONDS", 0.3)
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, rate_per_key=Rate.parse("10/s"), burst=1)) as leader:
        retry_later(database_url, leader.admit_all(1))
        assert leader.redeliver() == []
        assert leader.settle(0.2) == []
        query(database_url, "DELETE FROM inflight_jobs")

        assert ids_of(leader.admit_all(1)) == [2]


def test_no_place_of_a_queue_is_kept_for_a_retry_whose_key_is_full(database_url: str) -> None:
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, running=2, running_per_key=1)) as leader:
        retry_later(database_url, leader.admit_all(1))
        leader.admit_all(1)
        assert leader.redeliver() == []
        stage(database_url, 1, key="b")

        assert ids_of(leader.settle(0.2)) == [3]


def test_a_slow_search_for_the_retries_to_keep_room_for_is_not_made_each_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    search = running.due_retries

    def count(*arguments: object, **options: object) -> list[tuple[int, str]]:
        searches.append(arguments)
        return search(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(retries, "_PAUSE", 1_000_000)
    monkeypatch.setattr(running, "due_retries", count)
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        retry_later(database_url, leader.admit_all(1))
        leader.admit_all(1)
        for _ in range(5):
            assert leader.redeliver() == []

    assert len(searches) == 2

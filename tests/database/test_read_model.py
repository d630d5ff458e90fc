"""What follows from the numbers of a queue, and which of them are estimates."""

from __future__ import annotations

import pytest

from drain.database import postgres
from drain.read import queues, states, system
from drain.read.queue import STALLED_SECONDS, Queue
from drain.read.system import System
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow
from tests.helpers import query, stage_jobs


def read(database_url: str) -> System:
    with postgres.connect(database_url, "tests") as connection:
        return system.read(connection)


def test_a_large_table_is_estimated_from_a_sample_and_marked_so(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty pages stand for the table that is too large, and a few rows for as many as are looked at."""
    for name, value in (("UP_TO", 10), ("_FEW", 10), ("_OF_ALL", 10)):
        monkeypatch.setattr(queues, name, value)
    stage_jobs(database_url, 4000, queue="mail")
    ((pages,),) = query(
        database_url,
        "SELECT sum(pg_relation_size(relid)) / 8192 FROM pg_partition_tree('staged_jobs_ready'::regclass)",
    )
    monkeypatch.setattr(states, "PAGES", int(pages) // 4)
    found = read(database_url)
    mail = found.queues["mail"]
    assert "ready" in mail.estimates
    assert found.is_estimate("staged")
    assert 2000 < mail.ready < 8000

    monkeypatch.setattr(states, "PAGES", int(pages))
    found = read(database_url)
    assert found.queues["mail"].ready == 4000
    assert not found.is_estimate("staged")


def test_jobs_behind_a_full_list_are_not_late() -> None:
    assert Queue(ready=3, ready_seconds=60, waiting={"due": 3}).overdue == 3
    for cause in ("list_full", "limited", "rate", "paused"):
        assert Queue(ready=3, ready_seconds=60, waiting={cause: 3}).overdue == 0


def waits_for_a_worker() -> Queue:
    return Queue(queued=1, queued_seconds=STALLED_SECONDS + 1, workers=1)


def test_a_queue_that_ends_jobs_does_not_stall() -> None:
    queue = waits_for_a_worker()
    assert queue.is_stalled
    queue.per_second = 0.1
    assert not queue.is_stalled


def test_a_paused_queue_does_not_stall(database_url: str) -> None:
    queue = waits_for_a_worker()
    query(database_url, "INSERT INTO queue_pauses (queue) VALUES ('mail')")
    queue.paused = read(database_url).queues["mail"].paused
    assert isinstance(queue.paused, Pause)
    assert not queue.is_stalled


def test_a_queue_without_workers_is_unattended_and_does_not_stall() -> None:
    queue = waits_for_a_worker()
    queue.workers, queue.waiting = 0, {"queued": 1}
    assert queue.is_unattended
    assert not queue.is_stalled


def test_a_held_queue_is_always_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MOST_QUEUES", 2)
    crowd = {f"q{number}": Queue(ready=number) for number in range(1, 5)}
    crowd["held"] = Queue(rules=RulesRow("held", error="unknown unit"))
    found = system.with_others(crowd)
    assert {name: queue.ready for name, queue in found.items()} == {"held": 0, "q4": 4, system.OTHERS: 6}

"""Deliveries of jobs that this process knows, and of jobs that it gives back."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from drain.wire import PoppedId
from drain.workers.handover.journal import Journal
from drain.workers.options import WorkOptions
from drain.workers.process.claimer import Claimer
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import ClaimedJob
from drain.workers.process.shutdown import Shutdown


@pytest.mark.parametrize("is_ending", [True, False], ids=["its outcome is being recorded", "it runs"])
def test_a_job_resumed_before_its_process_forgets_it_is_claimed_again(*, is_ending: bool) -> None:
    journal = Journal()
    inbox = Inbox(WorkOptions(queues=["default"]), journal, Shutdown(30, journal))
    known: Any = SimpleNamespace(lease=SimpleNamespace(ending=is_ending))
    inbox.claimed[1] = known
    refused: list[PoppedId] = []
    others: Any = SimpleNamespace(
        wake=lambda _number: None, add=refused.extend, sort_unclaimed=lambda ids: ([], ids)
    )
    popped = PoppedId("test-1-20", "default", 1, 20)
    Claimer(inbox, others, others, others, others, others, others).claim([popped])
    assert [each.popped for each in inbox.pending] == ([popped] if is_ending else [])
    assert list(inbox.waiting) == list(inbox.pending)
    assert refused == ([] if is_ending else [popped])


@pytest.mark.parametrize("is_released", [True, False], ids=["given back", "cancelled meanwhile"])
def test_a_job_that_cannot_be_given_back_leaves_nothing_in_redis(*, is_released: bool) -> None:
    job = Mock(spec=ClaimedJob, rq_id="test-1-20", claim=SimpleNamespace(id=1, queue="default"), lease=Mock())
    database = Mock(ask=lambda _query: [SimpleNamespace(id=1)] if is_released else [])
    consumer, other = Mock(), Mock()

    Claimer(other, consumer, database, other, other, other, other).give_back([job])

    consumer.give_back.assert_called_once_with([("default", "test-1-20")] if is_released else [])
    consumer.clear_unless_awaited.assert_called_once_with([] if is_released else ["test-1-20"])

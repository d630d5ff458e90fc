"""Real worker processes say whether they could begin a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from drain.wire import Producer
from tests import jobs_that_hang as jobs
from tests.helpers import NAMESPACE, end, wait_until
from tests.worker_processes import Yard


@pytest.fixture
def producer(yard: Yard) -> Iterator[Producer]:
    with closing(Producer(yard.redis_url, NAMESPACE)) as made:
        yield made


@pytest.mark.parametrize(("threads", "most"), [("1", 1), ("2", 2)])
def test_a_process_is_busy_once_it_runs_as_many_jobs_as_it_can(
    yard: Yard, producer: Producer, threads: str, most: int
) -> None:
    def is_free() -> bool:
        (worker,) = producer.crews(["default"])["default"]
        return worker.is_free

    with yard.working("--threads", threads, DRAIN_JOBS=jobs.MODULE) as command:
        wait_until(lambda: producer.workers(["default"])["default"])
        for number in range(most):
            assert is_free()
            yard.pushed(jobs.return_at_go, f"job {number}")
            wait_until(lambda number=number: f"job {number}" in yard.effects())  # type: ignore[misc]
        wait_until(lambda: not is_free())
        yard.say("go")
        wait_until(is_free)
        assert end(command) == 0

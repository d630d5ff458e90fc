"""Retry, raised in each kind of worker: the job alone says when it runs again, and dies of its last attempt."""

from typing import Any

import pytest

from tests import jobs_in_batches as jobs
from tests.helpers import end, leading, rq_worker
from tests.worker_processes import Yard

EXPLANATION = "failed 2 times; last: OSError: a: the bank is down"


def is_dead_of_two_attempts(yard: Yard, job_id: int) -> bool:
    row = yard.row(job_id)
    return (row["place"], row["attempts"], row["explanation"]) == ("dead_jobs", 2, EXPLANATION)


@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["alone", "in threads"])
def test_each_kind_of_job_is_tried_twice(yard: Yard, options: tuple[str, ...]) -> None:
    kinds: list[Any] = [jobs.ask_again, jobs.ask_again_in_loop, jobs.ask_again_isolated]
    ids = [job_id for kind in kinds for job_id in yard.pushed(kind, "a")]
    with leading(yard.env()), yard.working(*options) as command:
        yard.wait_for("dead_jobs", ids)
        assert end(command) == 0
    assert all(is_dead_of_two_attempts(yard, job_id) for job_id in ids)
    assert yard.effects() == ["a"] * 6


def test_an_unmodified_rq_worker_does_the_same(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs.ask_again, "a")
    for place in ("inflight_jobs", "dead_jobs"):
        rq_worker(yard.redis_url, "default", env=yard.env())
        assert yard.place(job_id) == place
        yard.redeliver()
    assert is_dead_of_two_attempts(yard, job_id)
    assert yard.effects() == ["a"] * 2

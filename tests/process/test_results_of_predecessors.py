"""A job reads the results of the jobs that it waited for, wherever it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

import drain
from drain import current_job, job
from tests import jobs_with_results as jobs
from tests.helpers import PATIENCE_SECONDS, query, rq_worker
from tests.hostility import Place
from tests.inprocess_worker import Workshop
from tests.worker_processes import Yard

JOBS = {"DRAIN_JOBS": jobs.MODULE}
# As the leader does once predecessors have ended.
MEET = "UPDATE job_edges SET state = 'met' WHERE child_id = ANY (%s)"
UNBLOCK = "UPDATE staged_jobs SET scheduled_at = now(), matured_at = now() WHERE id = ANY (%s)"


def unblock(url: str, ids: list[int]) -> None:
    for statement in (MEET, UNBLOCK):
        query(url, statement, ids)


def finish(shop: Workshop, *values: Any, result: Any = "keep") -> list[int]:
    """Finish a job for each value, which it returns."""
    answer = job(name="tests.answer", result=result)(lambda value: value)
    ids = [shop.deliver(answer, value) for value in values]
    assert {shop.work(job_id) for job_id in ids} == {"finished"}
    return ids


def run_after(shop: Workshop, function: Any, after: Any) -> int:
    """Run a job after these, which have ended."""
    registered = job(name="tests.child", max_attempts=2, retry_base_seconds=0.001)(function)
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        job_id = registered.options(after=after).stage(connection)
    unblock(shop.database_url, [job_id])
    shop.move(job_id)
    shop.work_to_the_end(job_id)
    return job_id


def test_a_job_reads_the_results_by_id(shop: Workshop) -> None:
    seen: list[Any] = []
    a, b = finish(shop, {"shelf": 7}, None)
    (discarded,) = finish(shop, "x", result="discard")

    def child() -> None:
        results = current_job().results
        results[a]["shelf"] += 1
        results.clear()
        seen.append((current_job().results, asyncio.run(current_job().aresults())))

    run_after(shop, child, [a, b, discarded])
    assert seen == [({a: {"shelf": 7}, b: None}, {a: {"shelf": 7}, b: None})]


def test_a_job_without_predecessors_has_no_results(shop: Workshop) -> None:
    seen: list[Any] = []
    finish(shop, 1)
    run_after(shop, lambda: seen.append(current_job().results), [])
    assert seen == [{}]


def test_each_attempt_reads_them(shop: Workshop) -> None:
    seen: list[Any] = []
    (a,) = finish(shop, 1)

    def child() -> None:
        seen.append(current_job().results)
        if len(seen) == 1:
            raise OSError("try again")

    run_after(shop, child, a)
    assert seen == [{a: 1}, {a: 1}]


def test_the_result_of_a_job_that_stands_for_another_has_the_id_that_was_given(shop: Workshop) -> None:
    seen: list[Any] = []
    given, other = finish(shop, 1, 2)
    query(
        shop.database_url,
        "UPDATE finished_jobs SET superseded_by = %s, result = NULL WHERE id = %s",
        other,
        given,
    )

    def child() -> None:
        query(shop.database_url, "UPDATE job_edges SET awaited_id = %s WHERE parent_id = %s", other, given)
        seen.append(current_job().results)

    run_after(shop, child, given)
    assert seen == [{given: 2}]


def test_results_may_be_read_within_the_jobs_transaction(shop: Workshop) -> None:
    seen: list[Any] = []
    (a,) = finish(shop, 1)

    def child() -> None:
        with drain.psycopg_transaction():
            seen.append(current_job().results)
        seen.append(current_job().results)

    run_after(shop, child, a)
    assert seen == [{a: 1}] * 2


def test_each_kind_of_job_reads_results(yard: Yard) -> None:
    a, b = yard.pushed(jobs.answer, "a", "b")
    with yard.working("--burst", **JOBS) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    ids = [yard.stage(each, "c", after=[b, a])[0] for each in jobs.GATHERING]
    unblock(yard.database_url, ids)
    yard.push()
    with yard.working("--burst", "--threads", "2", **JOBS) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    wanted = ["c", [a, {"label": "a"}], [b, {"label": "b"}]]
    with psycopg.connect(yard.database_url, autocommit=True) as connection:
        assert [drain.result(connection, job_id) for job_id in ids] == [wanted] * len(ids)


def test_a_stock_rq_worker_reads_results(yard: Yard) -> None:
    (a,) = yard.pushed(jobs.answer, "a")
    rq_worker(yard.redis_url, "default", env=yard.env(**JOBS))
    (child,) = yard.stage(jobs.gather, "c", after=a)
    unblock(yard.database_url, [child])
    yard.push()
    rq_worker(yard.redis_url, "default", env=yard.env(**JOBS))
    with psycopg.connect(yard.database_url, autocommit=True) as connection:
        assert drain.result(connection, child) == ["c", [a, {"label": "a"}]]


def test_a_worker_needs_only_its_role(place: Place) -> None:
    from drain.tables.predecessors import read_results

    with place.connected("worker") as worker:
        assert read_results(worker, 1) == {}

"""Hooks on real servers: in each kind of worker, and at the end of a job."""

from collections import Counter
from typing import Any

import psycopg
import pytest

import drain
from drain import StageError, job, stage
from drain.workers.process.end_hooks import EndHooks
from tests import jobs_with_hooks as jobs
from tests.helpers import PATIENCE_SECONDS, end, query, rq_worker
from tests.inprocess_worker import NAME, Workshop
from tests.worker_processes import Yard


def expected(label: str, *, is_async: bool = False) -> list[str]:
    loop = [f"loop {label}"] if is_async else []
    return [f"begin {label} 1", *loop, f"ran {label}", f"end {label}", f"finished {label}"]


@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["main thread", "threads"])
def test_drain_work_calls_all_hooks_for_each_kind_of_job(yard: Yard, options: tuple[str, ...]) -> None:
    ids = yard.pushed(jobs.plain, "a") + yard.pushed(jobs.in_loop, "b") + yard.pushed(jobs.isolated, "c")
    dead = yard.pushed(jobs.fail, "d") + yard.pushed(jobs.give_up, "e")
    with yard.working(*options, DRAIN_JOBS=jobs.MODULE) as command:
        yard.wait_for("finished_jobs", ids)
        yard.wait_for("dead_jobs", dead)
        # The hooks of the last jobs are called before the process ends.
        assert end(command) == 0
        failures = command.events("hook_failed")
    effects = Counter(yard.effects())
    assert effects == Counter(
        [
            *expected("a"),
            *expected("b", is_async=True),
            *expected("c"),
            *["begin d 1", "end d", "dead d failed 1 time; last: ValueError: no d"],
            *["begin e 1", "end e", "dead e no e"],
        ]
    )
    assert len(failures) == 3
    order = [each for each in yard.effects() if each.endswith(("a", "a 1"))]
    assert order == expected("a")


def test_a_stock_rq_worker_calls_the_hooks_too(yard: Yard) -> None:
    ids = yard.pushed(jobs.plain, "a") + yard.pushed(jobs.in_loop, "b")
    dead = yard.pushed(jobs.fail, "c")
    written = rq_worker(yard.redis_url, "default", env=yard.env(DRAIN_JOBS=jobs.MODULE))
    assert yard.all_are("finished_jobs", ids), written
    assert yard.all_are("dead_jobs", dead), written
    assert yard.effects() == [
        *expected("a"),
        *expected("b", is_async=True),
        *["begin c 1", "end c", "dead c failed 1 time; last: ValueError: no c"],
    ]


def test_the_end_is_committed_before_its_hook_is_called(shop: Workshop) -> None:
    seen: list[tuple[int, str]] = []

    @drain.on_finish
    def finished(job: drain.CurrentJob) -> None:
        seen.append((job.id, shop.whereabouts(job.id)))

    @drain.on_dead
    def dead(job: drain.CurrentJob, reason: str) -> None:
        seen.append((job.id, shop.whereabouts(job.id)))

    def act(*, fails: bool) -> None:
        if fails:
            raise drain.Dead("enough")

    registered = job(name=NAME)(act)
    ended = [shop.deliver(registered, kwargs={"fails": fails}) for fails in (False, True)]
    assert [shop.work(job_id) for job_id in ended] == ["finished", "dead"]
    assert seen == [(ended[0], "finished_jobs"), (ended[1], "dead_jobs")]


def test_no_hook_runs_for_a_job_that_runs_again_or_lost_its_claim(shop: Workshop) -> None:
    seen: list[int] = []
    drain.on_finish(lambda job: seen.append(job.id))
    drain.on_dead(lambda job, reason: seen.append(job.id))

    def act(word: str) -> None:
        if word == "defer":
            raise drain.Defer(0)
        if word == "fail":
            raise ValueError
        shop.finish(shop.take_over(drain.current_job().id))

    registered = job(name=NAME, max_attempts=5)(act)
    ids = [shop.deliver(registered, word) for word in ("defer", "fail", "lose")]
    assert [shop.work(job_id) for job_id in ids] == ["deferred", "retrying", "stale"]
    assert seen == []


def test_an_expired_job_is_reported_to_on_dead(shop: Workshop) -> None:
    seen: list[str] = []
    drain.on_dead(lambda job, reason: seen.append(f"{job.args} {reason}"))
    job_id = shop.deliver(job(name=NAME)(lambda _: None), 3)
    shop.set(job_id, "expires_at = now() - interval '1 s' WHERE")
    assert shop.work(job_id) == "dead"
    assert seen == ["[3] its expires_at had passed before a worker could start it"]


def test_a_refusing_hook_leaves_the_transaction_usable(database_url: str) -> None:
    def refuses(name: str, args: Any, kwargs: Any, context: dict[str, Any]) -> None:
        if args == [2]:
            raise PermissionError("not this one")
        context["tenant"] = 7

    drain.on_stage(refuses)
    with psycopg.connect(database_url) as connection:
        first = stage(connection, "m.f", [1])
        with pytest.raises(StageError, match="PermissionError: not this one"):
            stage(connection, "m.f", [2])
    assert query(database_url, "SELECT id, context FROM staged_jobs") == [(first, {"tenant": 7})]


def test_a_slow_hook_delays_no_outcome_and_is_finally_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("drain.workers.process.end_hooks._MOST_WAITING", 2)
    monkeypatch.setattr("drain.workers.process.end_hooks._LAST_SECONDS", 0.01)
    from threading import Event

    began, go = Event(), Event()

    @drain.on_finish
    def hook(job: Any) -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)

    class Ended:
        current = None

    ends = EndHooks()
    ends.add(Ended())  # type: ignore[arg-type]
    assert began.wait(PATIENCE_SECONDS)
    for _ in range(4):
        ends.add(Ended())  # type: ignore[arg-type]
    ends.close()
    go.set()
    ends.close()
    assert [record.event for record in caplog.records] == ["hooks_left_out"]  # type: ignore[attr-defined]

"""Steps of a job that died are undone in reverse, each as its step was run; those of others are not."""

import asyncio
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

import drain
from drain import failpoints
from drain.__main__ import main
from drain.enqueuer.housekeeping import PastSteps
from drain.failpoints import FailurePoint
from drain.tables import cancellations, dead, staged, unique, waits
from drain.tables.selections import Selection
from drain.workers import current_job
from tests import jobs_with_undo as jobs
from tests.blocks import forget_django
from tests.flows import Flows, flows
from tests.helpers import connected, end, leading, query, rq_worker, wait_until
from tests.inprocess_worker import Workshop
from tests.jobs_with_undo import OUTSIDE, TRANSACTIONS, Way, outside
from tests.process.test_job_transactions import one_event
from tests.worker_processes import Yard

ALL = pytest.mark.parametrize("way", [*OUTSIDE, *TRANSACTIONS])
ATOMIC = pytest.mark.parametrize("way", TRANSACTIONS)


@pytest.fixture(autouse=True)
def _without_django() -> Iterator[None]:
    yield
    django = sys.modules.get("django.conf")
    if django and django.settings.configured:
        forget_django()


@pytest.fixture
def leader(shop: Workshop, redis_url: str) -> Iterator[Flows]:
    with flows(shop.database_url, redis_url) as leader:
        yield leader


def undoing(shop: Workshop, job_id: int) -> int:
    """Id of the job that undoes this one."""
    ((undo_id,),) = query(
        shop.database_url, "SELECT undone_by FROM job_steps WHERE job_id = %s AND undone_by > 0", job_id
    )
    return int(undo_id)


def steps(shop: Workshop, job_id: int) -> list[str]:
    rows = query(
        shop.database_url, "SELECT name FROM job_steps WHERE job_id = %s ORDER BY recorded_at", job_id
    )
    return [name for (name,) in rows]


def died(shop: Workshop, act: Callable[[], Any], **options: Any) -> int:
    """Let a job run to its death."""
    job_id = shop.delivered(act, **{"max_attempts": 1, **options})
    assert shop.work(job_id) == "dead"
    return job_id


def charge_and_fail() -> None:
    outside("charge", "charged")
    raise OSError("the shipper does not answer")


def undone(shop: Workshop, leader: Flows, job_id: int) -> str:
    """Let the job that undoes this one run once; return its word."""
    undo_id = undoing(shop, job_id)
    leader.look()
    shop.move(undo_id)
    return shop.work(undo_id)


@ALL
def test_the_steps_of_a_dead_job_are_undone_in_reverse(shop: Workshop, leader: Flows, way: Way) -> None:
    def act() -> None:
        way("reserve", "reserved")
        drain.step("price", lambda: 42)
        way("charge", "charged")
        way("pack", "packed")
        with suppress(ZeroDivisionError):
            drain.step.options(undo=jobs.undo)("ship", lambda: 1 / 0)
        raise OSError("the shipper does not answer")

    job_id = died(shop, act)
    undo_id = undoing(shop, job_id)
    assert undone(shop, leader, job_id) == "finished"
    done, undone_ = ["reserved", "charged", "packed"], ["undo packed", "undo charged", "undo reserved"]
    assert shop.effects() == [*done, *undone_]
    assert steps(shop, job_id) == []
    assert steps(shop, undo_id) == ["pack", "charge", "reserve"]
    assert leader.explanation(job_id).endswith(f"; undone by job {undo_id}")


def test_steps_are_undone_in_reverse_if_the_servers_clock_is_set_back(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        for label in ("a", "b", "c", "d"):
            outside(label, label)
            if label == "b":
                query(shop.database_url, "UPDATE job_steps SET recorded_at = recorded_at + interval '1 h'")
        raise OSError("the shipper does not answer")

    assert undone(shop, leader, died(shop, act)) == "finished"
    assert shop.effects() == ["a", "b", "c", "d", "undo d", "undo c", "undo b", "undo a"]


@ALL
def test_a_job_that_finishes_is_not_undone(shop: Workshop, leader: Flows, way: Way) -> None:
    def act() -> None:
        way("charge", "charged")
        if current_job().attempt == 1:
            raise OSError

    job_id = shop.delivered(act)
    assert shop.work_to_the_end(job_id) == ["retrying", "finished"]
    undo_id = undoing(shop, job_id)
    leader.look()
    assert shop.row(undo_id)["superseded_by"] == job_id
    assert shop.effects() == ["charged"]


def test_a_job_without_undo_stages_nothing(shop: Workshop) -> None:
    def act() -> None:
        drain.step("charge", lambda: 1)
        raise OSError

    died(shop, act)
    assert query(shop.database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM job_edges") == []


def test_one_job_undoes_all_steps_and_is_like_the_undone_one(shop: Workshop) -> None:
    def act() -> None:
        for number in range(3):
            outside(f"{number}", "done")
        raise OSError

    job_id = died(shop, act, name="tests.act", row={"tag": "orders", "priority": 7})
    found = query(
        shop.database_url,
        "SELECT id, job_name, job_args, queue, priority, tag, key, staged_by FROM staged_jobs",
    )
    ((role,),) = query(shop.database_url, "SELECT staged_by FROM dead_jobs")
    assert found == [(undoing(shop, job_id), "drain.undo", [job_id], "default", 7, "orders", None, role)]


@ATOMIC
@pytest.mark.parametrize("point", [FailurePoint.STEP_RAN, FailurePoint.STEP_RECORDED], ids=lambda p: p.name)
def test_an_undo_in_a_transaction_happens_once(
    shop: Workshop, leader: Flows, way: Way, point: FailurePoint
) -> None:
    """The session is ended before or after its commit; the next attempt continues."""

    def act() -> None:
        way("reserve", "reserved")
        way("charge", "charged")
        raise OSError

    def strike(reached: FailurePoint) -> None:
        if reached is point and current_job().attempt == 1:
            failpoints.set_hook(None)
            raise OSError

    job_id = died(shop, act)
    undo_id = undoing(shop, job_id)
    failpoints.set_hook(strike)
    try:
        assert undone(shop, leader, job_id) == "retrying"
    finally:
        failpoints.set_hook(None)
    assert shop.work_to_the_end(undo_id) == ["finished"]
    assert shop.effects() == ["reserved", "charged", "undo charged", "undo reserved"]


def test_the_result_of_an_undo_need_not_be_json(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        drain.step.options(undo=jobs.undo_for_a_receipt)("charge", jobs.do, "charged")
        step = drain.async_step.options(undo=jobs.undo_for_a_receipt_in_loop)
        asyncio.run(step("ship", jobs.do_in_loop, "shipped"))
        raise OSError

    job_id = died(shop, act)
    assert undone(shop, leader, job_id) == "finished"
    assert shop.effects() == ["charged", "shipped", "undo shipped", "undo charged"]


def test_an_undo_that_has_become_async_has_not_happened(shop: Workshop, leader: Flows) -> None:
    job_id = died(shop, charge_and_fail)
    _set_undo(shop, "tests.jobs_with_undo.undo_in_loop")
    assert undone(shop, leader, job_id) == "dead"
    assert steps(shop, job_id) == ["charge"]


def test_a_job_that_finished_is_not_undone_even_if_a_leader_of_version_8_lets_it(
    shop: Workshop, leader: Flows
) -> None:
    job_id = shop.delivered(lambda: outside("charge", "charged"))
    assert shop.work(job_id) == "finished"
    undo_id = undoing(shop, job_id)
    leader.connection.execute("UPDATE job_edges SET state = 'met'")
    assert staged.unblock(leader.connection, {undo_id}) == {undo_id: False}
    shop.move(undo_id)
    assert shop.work(undo_id) == "finished"
    assert shop.effects() == ["charged"]


def test_a_job_that_gave_way_is_undone(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        outside("charge", "charged")
        raise OSError

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    undo_id = undoing(shop, job_id)
    other = leader.stage()
    with leader.connection.transaction():
        unique.supersede_in_flight(leader.connection, {job_id: other})
    leader.die(other)
    leader.look()
    shop.move(undo_id)
    assert shop.work(undo_id) == "finished"
    assert shop.effects() == ["charged", "undo charged"]


def test_a_wait_of_an_undone_job_begins_again(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        outside("charge", "charged")
        drain.wait_for("approval", timeout=3600)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "deferred"
    leader.connection.execute("UPDATE job_waits SET deadline = now() - interval '1 ms'")
    cancellations.cancel_inflight(leader.connection, Selection(ids=(job_id,)))
    assert undone(shop, leader, job_id) == "finished"
    waits.match(leader.connection, None)
    leader.retry(job_id)
    shop.move(job_id)
    assert shop.work(job_id) == "deferred"
    assert query(shop.database_url, "SELECT deadline > now() FROM job_waits") == [(True,)]


def test_an_undo_outside_is_not_repeated_once_recorded(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        drain.step.options(undo=jobs.fail)("reserve", jobs.do, "reserved")
        outside("charge", "charged")
        raise OSError

    job_id = died(shop, act)
    undo_id = undoing(shop, job_id)
    assert undone(shop, leader, job_id) == "retrying"
    assert shop.work(undo_id) == "retrying"
    assert shop.effects() == ["reserved", "charged", "undo charged"]
    assert steps(shop, job_id) == ["reserve"]


def test_an_undo_that_raises_is_one_line(
    shop: Workshop, leader: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> None:
        drain.step.options(undo=jobs.fail)("charge", jobs.do, "charged")
        raise drain.Dead

    job_id = died(shop, act)
    undo_id = undoing(shop, job_id)
    with caplog.at_level(logging.WARNING):
        assert undone(shop, leader, job_id) == "retrying"
    assert one_event(caplog, "undo_failed") == (
        f"job {undo_id} could not undo step 'charge' of job {job_id}: OSError: no answer"
    )


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (
            "tests.jobs_with_undo.renamed",
            "function tests.jobs_with_undo.renamed no longer exists: deploy it again",
        ),
        (
            "tests.gone.undo",
            "tests.gone.undo cannot be imported: No module named 'tests.gone'; deploy it again",
        ),
    ],
)
def test_an_undo_that_the_code_lacks_is_one_line_and_can_be_retried(
    shop: Workshop, leader: Flows, path: str, reason: str
) -> None:
    job_id = died(shop, charge_and_fail)
    undo_id = undoing(shop, job_id)
    _set_undo(shop, path)
    assert undone(shop, leader, job_id) == "retrying"
    assert shop.row(undo_id)["last_error"]["message"] == reason
    shop.set(undo_id, "max_attempts = attempts + 1 WHERE")
    assert shop.work(undo_id) == "dead"

    _set_undo(shop, "tests.jobs_with_undo.undo")
    leader.retry(undo_id)
    shop.move(undo_id)
    assert shop.work(undo_id) == "finished"
    assert shop.effects() == ["charged", "undo charged"]


def _set_undo(shop: Workshop, path: str) -> None:
    query(shop.database_url, "UPDATE job_steps SET undo = undo || jsonb_build_object('call', %s::text)", path)


def test_a_job_that_is_cancelled_while_it_runs_is_undone(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        outside("reserve", "reserved")
        cancellations.cancel_inflight(connected(shop.database_url), Selection(ids=(current_job().id,)))
        jobs.by_psycopg("charge", "charged")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "cancelled"
    assert undone(shop, leader, job_id) == "finished"
    assert shop.effects() == ["reserved", "undo reserved"]


def test_a_job_discarded_before_the_leader_looked_is_undone(shop: Workshop, leader: Flows) -> None:
    job_id = died(shop, charge_and_fail)
    undo_id = undoing(shop, job_id)
    leader.discard(job_id)
    chore = PastSteps(connected(shop.database_url))
    assert chore._work() == 0
    assert undone(shop, leader, job_id) == "finished"
    assert shop.effects() == ["charged", "undo charged"]
    assert steps(shop, job_id) == []
    assert steps(shop, undo_id) == ["charge"]


def test_steps_of_a_discarded_job_go_with_the_job_that_would_undo_them(shop: Workshop, leader: Flows) -> None:
    job_id = died(shop, charge_and_fail)
    undo_id = undoing(shop, job_id)
    leader.cancel(undo_id)
    leader.discard(job_id)
    chore = PastSteps(connected(shop.database_url))
    assert chore._work() == 0
    leader.discard(undo_id)
    assert chore._work() == 1


def test_a_job_retried_before_the_leader_looked_goes_on(shop: Workshop, leader: Flows) -> None:
    is_up: list[bool] = []

    def act() -> None:
        outside("charge", "charged")
        if not is_up:
            raise OSError

    job_id = died(shop, act)
    undo_id = undoing(shop, job_id)
    leader.retry(job_id)
    leader.look()
    assert leader.state(undo_id) == "blocked"
    is_up.append(True)
    shop.move(job_id)
    assert shop.work(job_id) == "finished"
    leader.look()
    assert shop.row(undo_id)["superseded_by"] == job_id
    assert shop.effects() == ["charged"]


def test_a_job_that_is_being_undone_cannot_be_retried(shop: Workshop, leader: Flows) -> None:
    job_id = died(shop, charge_and_fail)
    undo_id = undoing(shop, job_id)
    leader.look()
    line = f"job {job_id} is being undone by job {undo_id}; retry it when that has finished"
    for place in ("waiting", "in flight"):
        assert leader.state(undo_id) == place
        assert _retry(shop, job_id) == f"Error: {line}; nothing was done\n"
        assert _retry(shop, "--all") == f"Error: {line}; nothing was done\n"
        if place == "waiting":
            shop.move(undo_id)
    assert shop.work(undo_id) == "finished"
    assert _retry(shop, job_id) == "retry: 1 job\n"


def _retry(shop: Workshop, which: int | str) -> str:
    words = ["dead", "retry", str(which), "--yes", "--database-url", shop.database_url]
    return CliRunner().invoke(main, words).output


def test_a_retry_and_the_leader_exclude_each_other(shop: Workshop, leader: Flows) -> None:
    """Both have seen the dead job; the one that comes second does nothing."""
    job_id = died(shop, charge_and_fail)
    undo_id = undoing(shop, job_id)

    def retry(point: FailurePoint) -> None:
        if point is FailurePoint.JUDGED:
            failpoints.set_hook(None)
            assert dead.revive(connected(shop.database_url), dead.Selection((job_id,))) == 0

    failpoints.set_hook(retry)
    try:
        leader.look()
    finally:
        failpoints.set_hook(None)
    assert leader.states(job_id, undo_id) == ["failed", "waiting"]


def test_the_leader_looks_again_after_a_retry(
    shop: Workshop, leader: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = died(shop, charge_and_fail)
    undo_id = undoing(shop, job_id)
    from drain.tables import edges

    outcomes = edges.outcomes

    def retried_since(connection: Any, ids: Any) -> Any:
        found = outcomes(connection, ids)
        monkeypatch.undo()
        leader.retry(job_id)
        return found

    monkeypatch.setattr(edges, "outcomes", retried_since)
    leader.look()
    assert leader.states(job_id, undo_id) == ["waiting", "blocked"]


def test_a_job_retried_after_its_undo_starts_again_and_can_be_undone_again(
    shop: Workshop, leader: Flows
) -> None:
    def act() -> None:
        outside("charge", f"charged in {current_job().fencing_token}")
        raise OSError

    job_id = died(shop, act)
    first = undoing(shop, job_id)
    assert undone(shop, leader, job_id) == "finished"
    leader.retry(job_id)
    shop.move(job_id)
    assert shop.work(job_id) == "dead"
    assert undoing(shop, job_id) != first
    assert undone(shop, leader, job_id) == "finished"
    assert shop.effects() == [
        *("charged in 1", "undo charged in 1"),
        *("charged in 2", "undo charged in 2"),
    ]


def test_a_discarded_undo_leaves_the_steps_that_were_not_undone(shop: Workshop, leader: Flows) -> None:
    """So a retry runs the undone ones again, and not the others; a later death undoes them all."""

    def act() -> None:
        drain.step.options(undo=jobs.fail)("reserve", jobs.do, "reserved")
        outside("charge", "charged")
        raise OSError

    job_id = died(shop, act)
    undo_id = undoing(shop, job_id)
    assert undone(shop, leader, job_id) == "retrying"
    shop.set(undo_id, "max_attempts = attempts + 1 WHERE")
    assert shop.work(undo_id) == "dead"
    leader.discard(undo_id)
    leader.retry(job_id)
    shop.move(job_id)
    assert shop.work(job_id) == "dead"
    assert shop.effects() == ["reserved", "charged", "undo charged", "charged"]
    assert undoing(shop, job_id) > undo_id
    _set_undo(shop, "tests.jobs_with_undo.undo")
    assert undone(shop, leader, job_id) == "finished"
    assert shop.effects()[4:] == ["undo charged", "undo reserved"]


def test_a_job_that_an_application_stages_by_this_name_undoes_nothing(shop: Workshop, leader: Flows) -> None:
    job_id = died(shop, charge_and_fail)
    false = drain.stage(connected(shop.database_url), "drain.undo", [job_id])
    shop.move(false)
    assert shop.work(false) == "finished"
    assert shop.effects() == ["charged"]


def test_only_its_own_job_undoes_a_step(shop: Workshop) -> None:
    job_id = died(shop, charge_and_fail)
    false = shop.move(drain.stage(connected(shop.database_url), "drain.undo", [job_id]))
    shop.claim(false)
    call = "drain_record_undo(id, fencing_token, salt, claimed_by, 'charge', '1', 0, %s, 'charge')"
    assert query(shop.database_url, f"SELECT {call} FROM inflight_jobs", job_id) == [(True,)]
    assert steps(shop, job_id) == ["charge"]


@ALL
def test_a_step_of_a_lost_claim_stages_nothing(shop: Workshop, way: Way) -> None:
    def act() -> None:
        shop.take_over(current_job().id)
        way("charge", "late")

    assert shop.work(shop.delivered(act, lease_seconds=30, heartbeat_seconds=10)) == "stale"
    assert query(shop.database_url, "SELECT FROM job_steps UNION ALL SELECT FROM staged_jobs") == []


def test_two_steps_at_repeatable_read_stage_one_undo_job(shop: Workshop) -> None:
    call = "drain_record_undoable_step(id, fencing_token, salt, claimed_by, %s, '1', 0, '{}')"
    record = f"SELECT {call} FROM inflight_jobs".encode()
    job_id = shop.delivered(lambda: None)
    shop.claim(job_id)
    with psycopg.connect(shop.database_url) as first, psycopg.connect(shop.database_url) as second:
        first.isolation_level = second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        second.execute("SELECT FROM job_steps")
        first.execute(record, ["a"])
        first.commit()
        with pytest.raises(psycopg.errors.UniqueViolation):
            second.execute(record, ["b"])


def test_an_undo_must_be_importable() -> None:
    def nested(_result: Any) -> None: ...

    for function, words in (
        (lambda _: None, "has no name that a worker could import; use a module-level function"),
        (nested, "has no name that a worker could import; use a module-level function"),
        (jobs.undo_in_loop, "only an async step can have an `async def` as its undo"),
        ([].append, "has no name that a worker could import; use a module-level function"),
    ):
        with pytest.raises(ValueError, match=words):
            drain.step.options(undo=function)


def test_show_and_explain_name_the_job_that_undoes(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        drain.step.options(undo=jobs.fail)("charge", jobs.do, "charged")
        raise drain.Dead("out of stock")

    job_id = died(shop, act)
    undo_id = undoing(shop, job_id)
    undone(shop, leader, job_id)
    assert re.search(rf"^undone by +job {undo_id}, retrying$", _printed(shop, "show", job_id), re.M)
    assert f"undone by job {undo_id} (retrying)" in _printed(shop, "explain", job_id)
    shop.set(undo_id, "max_attempts = attempts + 1 WHERE")
    shop.work(undo_id)
    why = "failed 2 times; last: OSError: no answer"
    assert re.search(rf"^undone by +job {undo_id}, dead: {why}$", _printed(shop, "show", job_id), re.M)
    assert f"undone by job {undo_id} (dead): {why}" in _printed(shop, "explain", job_id)
    as_json = json.loads(_printed(shop, "show", job_id, "--json"))["undone_by"]
    assert (as_json["id"], as_json["state"]) == (undo_id, "dead")


def test_show_and_explain_of_a_job_that_would_undo(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        outside("charge", "charged")
        raise drain.Defer(60)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "deferred"
    undo_id = undoing(shop, job_id)
    for command in ("show", "explain"):
        found = _printed(shop, command, undo_id)
        assert f"job {job_id}" in found, found
    assert "undone by" not in _printed(shop, "show", job_id)


def _printed(shop: Workshop, command: str, job_id: int, *words: str) -> str:
    given = [command, str(job_id), *words, "--database-url", shop.database_url]
    return CliRunner(env={"COLUMNS": "300"}).invoke(main, given).output


KINDS: list[Any] = [jobs.die, jobs.die_in_loop, jobs.die_isolated]


@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["alone", "in threads"])
def test_processes_undo_each_kind_of_job(yard: Yard, options: tuple[str, ...]) -> None:
    env = {"DRAIN_JOBS": jobs.MODULE}
    ids = [job_id for number, kind in enumerate(KINDS) for job_id in yard.stage(kind, f"{number}")]
    with leading(yard.env(**env)), yard.working(*options, **env) as first, yard.working(**env) as second:
        wait_until(lambda: len(query(yard.database_url, "SELECT FROM finished_jobs")) == len(ids))
        assert (end(first), end(second)) == (0, 0)
    per_job = [(f"{n} reserved", f"{n} charged", f"undo {n} charged", f"undo {n} reserved") for n in range(3)]
    assert sorted(yard.effects()) == sorted(label for labels in per_job for label in labels)
    for labels in per_job:
        assert [label for label in yard.effects() if label in labels] == [*labels]


def test_an_unmodified_rq_worker_undoes(yard: Yard) -> None:
    env = yard.env(DRAIN_JOBS=jobs.MODULE)
    (job_id,) = yard.pushed(jobs.die, "a")
    rq_worker(yard.redis_url, "default", env=env)
    assert yard.place(job_id) == "dead_jobs"
    with flows(yard.database_url, yard.redis_url) as leader:
        leader.look()
    yard.push()
    rq_worker(yard.redis_url, "default", env=env)
    assert yard.effects() == ["a reserved", "a charged", "undo a charged", "undo a reserved"]

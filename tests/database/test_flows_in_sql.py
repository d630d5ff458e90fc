"""Flows made by SQL: options, keys, members, callbacks and progress."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors

from drain.tables.columns import BLOCKED_UNTIL, MARKER
from tests.flows import Flows
from tests.helpers import PATIENCE_SECONDS, new_enqueuer, query, wait_until

EDGES = "SELECT child_id, parent_id, on_failure, node FROM job_edges ORDER BY child_id, parent_id"


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        yield Flows(database_url, enqueuer)


def made(connection: psycopg.Connection[Any], **options: Any) -> tuple[int, bool]:
    rows = connection.execute("SELECT * FROM drain_flow(%s::text::jsonb)", (json.dumps(options),)).fetchall()
    ((flow, is_new),) = rows
    return flow, is_new


def test_a_flow_is_a_marker_and_its_description(jobs: Flows) -> None:
    given = {"name": "import", "description": "of May", "expires_at": "2030-01-02T03:04:05Z"}
    flow, is_new = made(jobs.connection, **given, queue="mail", tag="t")
    assert is_new
    assert query(jobs.url, "SELECT name, description, expires_at = '2030-01-02T03:04:05Z' FROM flows") == [
        ("import", "of May", True)
    ]
    columns = "id, job_name, queue, tag, scheduled_at, expires_at"
    assert query(jobs.url, f"SELECT {columns} FROM staged_jobs") == [
        (flow, MARKER, "mail", "t", BLOCKED_UNTIL, None)
    ]
    # The opening is an id that no job has.
    assert query(jobs.url, EDGES) == [(flow, flow + 1, "run", None)]
    assert jobs.stage() == flow + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("[]", "the options of a flow are a JSON object"),
        ("null", "the options of a flow are a JSON object"),
        ('{"names": "a"}', "drain_flow\\(\\) has no option 'names'"),
        ('{"name": ""}', "name_must_have_1_to_255_characters"),
        (json.dumps({"description": "x" * 4097}), "description_must_not_exceed_4096_characters"),
        ('{"queue": "no good"}', "queue_must_be_a_name_that_rq_can_carry"),
        ('{"expires_at": "soon"}', "soon"),
        ('{"idempotency_key": ""}', "idempotency_key_must_have_1_to_255_characters"),
    ],
)
def test_bad_options_of_a_flow_are_refused(jobs: Flows, options: str, message: str) -> None:
    with pytest.raises(psycopg.Error, match=message):
        jobs.connection.execute("SELECT drain_flow(%s::text::jsonb)", (options,))
    assert query(jobs.url, "SELECT count(*) FROM flows") == [(0,)]


def test_a_key_makes_one_flow(jobs: Flows) -> None:
    given = {"idempotency_key": "k", "digest": "a"}
    flow, is_new = made(jobs.connection, **given)
    assert is_new
    assert made(jobs.connection, **given, name="other") == (flow, False)
    with pytest.raises(errors.UniqueViolation, match=f"the idempotency key 'k' is that of flow {flow}"):
        made(jobs.connection, idempotency_key="k", digest="b")
    jobs.look()
    assert jobs.state(flow) == "finished"
    assert made(jobs.connection, **given) == (flow, False)
    assert query(jobs.url, "SELECT count(*) FROM flows") == [(1,)]


def test_a_second_transaction_with_the_key_of_a_flow_waits_for_the_first(jobs: Flows) -> None:
    given = {"idempotency_key": "k", "digest": "a"}
    with jobs.open() as one, psycopg.connect(jobs.url) as other, ThreadPoolExecutor(1) as thread:
        flow, _ = made(one, **given)
        second = thread.submit(made, other, **given)
        wait_until(lambda: query(jobs.url, "SELECT FROM pg_locks WHERE NOT granted"), PATIENCE_SECONDS)
        one.commit()
        assert second.result(PATIENCE_SECONDS) == (flow, False)


def test_one_transaction_makes_a_flow_once(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, _ = made(one, idempotency_key="k")
        assert made(one, idempotency_key="k") == (flow, False)
        one.commit()
    assert query(jobs.url, EDGES) == [(flow, flow + 1, "run", None)]


def test_edges_of_members_and_callbacks(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, complete = jobs.flow("complete", on=one)
        first = jobs.stage(flow=flow, node="a", on=one)
        second = jobs.stage((first, "hold"), flow=flow, node="b", on=one)
        success, dead = (jobs.stage(flow=flow, event=event, on=one) for event in ("success", "dead"))
        one.commit()
    opening = flow + 1
    assert query(jobs.url, EDGES) == [
        (flow, opening, "run", None),
        (flow, first, "hold", "a"),
        (flow, second, "hold", "b"),
        (complete, opening, "run", None),
        (complete, first, "run", None),
        (complete, second, "run", None),
        (second, first, "hold", None),
        (success, flow, "hold", None),
        (dead, flow, "only", None),
    ]
    assert query(jobs.url, "SELECT on_success, on_complete, on_dead FROM flows") == [
        (success, complete, dead)
    ]


def test_a_callback_staged_after_members_waits_for_them(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, *_ = jobs.flow(on=one)
        member = jobs.stage(flow=flow, on=one)
        complete = jobs.stage(flow=flow, event="complete", run_in=60, on=one)
        one.commit()
    jobs.look()
    jobs.finish(member)
    assert jobs.edges(complete) == ["met", "waiting"]
    jobs.look()
    assert jobs.states(flow, complete) == ["finished", "scheduled"]


def test_jobs_under_idempotency_keys_join_once(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, *_ = jobs.flow(on=one)
        first = jobs.stage(flow=flow, node="a", idempotency_key="a", on=one)
        member = jobs.stage(first, flow=flow, node="b", idempotency_key="b", on=one)
        callback = jobs.stage(first, flow=flow, event="success", idempotency_key="c", on=one)
        again = [
            jobs.stage(flow=flow, node="b", idempotency_key="b", on=one),
            jobs.stage(flow=flow, event="success", idempotency_key="c", on=one),
        ]
        one.commit()
    assert again == [member, callback]
    assert jobs.stage(flow=flow, node="b", idempotency_key="b") == member
    assert jobs.stage(flow=flow, event="success", idempotency_key="c") == callback
    jobs.look()
    for job_id in (first, member):
        jobs.finish(job_id)
        jobs.look()
    assert jobs.stage(flow=flow, node="b", idempotency_key="b") == member
    assert query(jobs.url, f"{EDGES.partition('ORDER')[0]} WHERE on_failure <> 'run' ORDER BY 1, 2") == [
        (flow, first, "hold", "a"),
        (flow, member, "hold", "b"),
        (member, first, "cancel", None),
        (callback, flow, "hold", None),
        (callback, first, "cancel", None),
    ]


@pytest.mark.parametrize("options", [{"node": "k"}, {}, {"event": "success"}])
def test_a_flow_does_not_silently_run_without_a_job_under_an_earlier_key(
    jobs: Flows, options: dict[str, Any]
) -> None:
    before = jobs.stage(idempotency_key="k")
    flow, *_ = jobs.flow()
    with pytest.raises(psycopg.Error, match=f"job {before} is not a") as refused:
        jobs.stage(flow=flow, idempotency_key="k", **options)
    assert "\n" not in str(refused.value.diag.message_primary)
    with pytest.raises(psycopg.errors.UniqueViolation, match="other arguments"):
        jobs.connection.execute(
            "SELECT drain_stage('m.other', '[]', %s::text::jsonb)",
            (json.dumps({"flow": flow, "idempotency_key": "k"}),),
        )
    assert jobs.edges(flow) == ["waiting"]


def test_progress_counts_edges(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, *callbacks = jobs.flow("complete", "dead", on=one)
        members = [jobs.stage(flow=flow, on=one) for _ in range(5)]
        one.commit()
    assert jobs.progress(flow) == (5, 0, 0, 5, "running")
    jobs.finish(members[0])
    jobs.die(members[1], members[2])
    jobs.move(members[3])
    jobs.look()
    jobs.discard(members[2])
    assert jobs.progress(flow) == (5, 1, 2, 2, "running")
    jobs.finish(*members[3:])
    jobs.look()
    assert jobs.progress(flow) == (5, 3, 2, 0, "cancelled")
    empty, *_ = jobs.flow()
    jobs.look()
    assert jobs.progress(empty) == (0, 0, 0, 0, "finished")
    assert query(jobs.url, "SELECT * FROM drain_flow_progress(%s)", callbacks[0]) == []

"""Jobs that may not join a flow, so that no jobs wait for each other, and roles that may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.flows import Flows
from tests.helpers import connected, new_enqueuer


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        yield Flows(database_url, enqueuer)


def refused(jobs: Flows, message: str, *after: Any, on: psycopg.Connection[Any], **options: Any) -> None:
    with pytest.raises(psycopg.Error, match=message), on.transaction():
        jobs.stage(*after, on=on, **options)


def test_members_wait_only_for_members_and_for_earlier_jobs(jobs: Flows) -> None:
    """So no cycle can close, whatever joins later."""
    before = jobs.stage()
    with jobs.open() as one:
        flow, success, complete = jobs.flow("success", "complete", on=one)
        outside, inside = jobs.stage(on=one), jobs.stage(flow=flow, on=one)
        jobs.stage((inside, "run"), before, flow=flow, on=one)
        message = "of flow [0-9]+ cannot wait for job {}, which is not in the flow"
        for awaited in (flow, success, complete, outside):
            refused(jobs, message.format(awaited), awaited, flow=flow, on=one)
            refused(jobs, message.format(awaited), awaited, flow=flow, idempotency_key="k", on=one)
        one.commit()
    refused(jobs, message.format(outside), inside, outside, flow=flow, on=jobs.connection)
    assert jobs.stage(inside, flow=flow)


def test_a_job_that_waits_joins_only_where_its_predecessors_are(jobs: Flows) -> None:
    join = "SELECT drain_join(%s, ARRAY[%s::bigint], NULL)"
    with jobs.open() as one:
        flow, *_ = jobs.flow(on=one)
        outside = jobs.stage(on=one)
        waits = jobs.stage(outside, on=one)
        for late in (waits, jobs.stage(flow, on=one)):
            with pytest.raises(psycopg.Error, match="which is not in the flow"), one.transaction():
                one.execute(join, (flow, late))
        both = "SELECT drain_join(%s, ARRAY[%s, %s]::bigint[], ARRAY['a', 'b'])"
        one.execute(both, (flow, waits, outside))


def test_no_job_waits_for_itself_or_a_later_one(jobs: Flows) -> None:
    after = "SELECT drain_after(ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY['run'])"
    with jobs.open() as one:
        blocked, later = jobs.stage(jobs.stage(on=one), on=one), jobs.stage(on=one)
        for awaited in (blocked, later):
            with pytest.raises(errors.CheckViolation, match="cannot wait for job"), one.transaction():
                one.execute(after, (blocked, awaited))


def test_only_new_jobs_after_the_flow_join_it(jobs: Flows) -> None:
    join = "SELECT drain_join(%s, ARRAY[%s::bigint], NULL)"
    flow, *_ = jobs.flow()
    committed = jobs.stage()
    with jobs.open() as one:
        early = jobs.stage(on=one)
        later, callback = jobs.flow("complete", on=one)
        message = "is not a job that this role has staged in this transaction, after flow"
        for to, job in (
            *((flow, committed), (later, early), (later, 10**17)),
            *((flow, later), (later, later), (flow, None)),
        ):
            with pytest.raises(errors.InvalidParameterValue, match=message), one.transaction():
                one.execute(join, (to, job))
        with pytest.raises(psycopg.Error, match="which is not in the flow"), one.transaction():
            one.execute(join, (later, callback))
    with pytest.raises(
        errors.ForeignKeyViolation, match=f"flow {committed} is unknown or belongs to another role"
    ):
        jobs.stage(flow=committed)


def test_each_node_joins_once(jobs: Flows) -> None:
    flow, *_ = jobs.flow()
    jobs.stage(flow=flow, node="a")
    jobs.stage(flow=flow)
    message = "already has one of the jobs .* or of the nodes {a}"
    refused(jobs, message, flow=flow, node="a", on=jobs.connection)
    refused(jobs, "node_must_have_1_to_255_characters", flow=flow, node="", on=jobs.connection)
    jobs.stage(flow=flow, node="b")
    assert jobs.progress(flow)[0] == 3


def test_callbacks_belong_to_the_transaction_that_makes_the_flow(jobs: Flows) -> None:
    flow, *_ = jobs.flow()
    message = "is not of this role and transaction, or already has a callback for"
    refused(jobs, message, flow=flow, event="success", on=jobs.connection)
    callback = "SELECT drain_callback(%s, %s, %s)"
    with jobs.open() as one:
        before = jobs.stage(jobs.stage(on=one), on=one)
        own, _ = jobs.flow("success", on=one)
        refused(jobs, message, flow=own, event="success", on=one)
        member, free = jobs.stage(flow=own, on=one), jobs.stage(on=one)
        blocked_member = jobs.stage(member, flow=own, on=one)
        for job in (before, member, free, blocked_member, own, 10**17):
            with pytest.raises(errors.InvalidParameterValue, match="is not a blocked job"), one.transaction():
                one.execute(callback, (own, job, "dead"))
        with pytest.raises(errors.InvalidParameterValue, match="'end' is not an event"), one.transaction():
            one.execute(callback, (own, free, "end"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flow": 0}, "the option flow of drain_stage\\(\\) is the id of a flow, not 0"),
        ({"flow": "1"}, 'is the id of a flow, not "1"'),
        ({"flow": 1, "event": "end"}, "the option on of drain_stage\\(\\) is an event, not"),
        ({"flow": 1, "node": 7}, "is a text, not 7"),
        ({"node": "a"}, "the options node and on need a flow"),
        ({"event": "dead"}, "the options node and on need a flow"),
        ({"flow": 1, "node": "a", "event": "dead"}, "node and on exclude each other"),
    ],
)
def test_bad_options_of_members_are_refused(jobs: Flows, options: dict[str, Any], message: str) -> None:
    refused(jobs, message, on=jobs.connection, **options)


# -- roles ------------------------------------------------------------------------------------------------------------


def test_only_roles_with_the_rights_of_the_one_that_made_a_flow_join_and_count_it(jobs: Flows) -> None:
    owner = connected(jobs.url)
    roles = ("test_flows_one", "test_flows_worker", "test_flows_other")
    for role in roles:
        owner.execute(f"CREATE ROLE {role}; GRANT ALL ON staged_jobs TO {role}".encode())
        owner.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {role}".encode())
    try:
        owner.execute("GRANT test_flows_one TO test_flows_worker")
        owner.execute("SET ROLE test_flows_one")
        flow, *_ = jobs.flow(on=owner)
        jobs.stage(flow=flow, on=owner)
        owner.execute("SET ROLE test_flows_worker")
        member = jobs.stage(flow=flow, on=owner)
        count = "SELECT total FROM drain_flow_progress(%s)"
        assert owner.execute(count, (flow,)).fetchall() == [(2,)]
        owner.execute("SET ROLE test_flows_other")
        refused(jobs, "is unknown or belongs to another role", flow=flow, on=owner)
        assert owner.execute(count, (flow,)).fetchall() == []
        with pytest.raises(errors.InsufficientPrivilege):
            owner.execute("SELECT FROM flows")
        owner.execute("RESET ROLE")
        ((by,),) = owner.execute("SELECT staged_by FROM staged_jobs WHERE id = %s", (member,)).fetchall()
        assert by == "test_flows_worker"
    finally:
        owner.execute("RESET ROLE")
        for role in roles:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())

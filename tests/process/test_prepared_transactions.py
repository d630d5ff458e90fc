"""Flows and dependent jobs staged by a prepared transaction, which outlives the leader and a crash of the server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from drain.embedded import Services
from tests.flows import Flows, flows
from tests.helpers import disconnect, environment, leading, query, wait_until


@pytest.fixture
def jobs(own: Services, redis_url: str) -> Iterator[Flows]:
    query(own.database_url, "ALTER SYSTEM SET max_prepared_transactions = 1")
    restart(own)
    with flows(own.database_url, redis_url) as jobs:
        jobs.enqueuer.connection.close()
        yield jobs
    query(own.database_url, "ALTER SYSTEM RESET max_prepared_transactions")


def restart(server: Services) -> None:
    disconnect()
    server.postgres.kill()
    server.postgres.start()


def is_at(jobs: Flows, state: str, *ids: int) -> None:
    wait_until(lambda: set(jobs.states(*ids)) == {state})


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_predecessors_may_end_before_a_prepared_transaction_does(
    own: Services, jobs: Flows, redis_url: str, end: str
) -> None:
    with leading(environment(jobs.url, redis_url)):
        # The leader would end an empty flow.
        with jobs.connection.transaction():
            (flow,) = jobs.flow()
            parent, first = jobs.stage(), jobs.stage(flow=flow)
        with psycopg.connect(jobs.url, autocommit=True) as one:
            one.execute("SET drain.notify = 'off'")
            one.execute("BEGIN")
            child, second = jobs.stage(parent, on=one), jobs.stage(first, flow=flow, on=one)
            later, success = jobs.flow("success", on=one)
            one.execute("PREPARE TRANSACTION 'order'")
        is_at(jobs, "in flight", parent, first)
        jobs.finish(parent, first)
        is_at(jobs, "in flight", jobs.stage(parent, first))
        assert jobs.states(flow, child, second, later) == ["blocked", "absent", "absent", "absent"]
    restart(own)
    jobs.connection = psycopg.connect(jobs.url, autocommit=True)
    with leading(environment(jobs.url, redis_url)):
        is_at(jobs, "in flight", jobs.stage(parent, first))
        assert jobs.states(flow, child) == ["blocked", "absent"]
        query(jobs.url, f"{end} PREPARED 'order'")
        if end == "COMMIT":
            is_at(jobs, "in flight", child, second, success)
            assert jobs.states(flow, later) == ["blocked", "finished"]
            jobs.finish(second)
        is_at(jobs, "finished", flow)

"""A job may set the search_path of its transaction, and have tables of its own under our names there."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from drain import cancel
from drain.workers import JobCancelledError, LeaseLostError, current_job
from tests.blocks import WAYS, Block, forget_django
from tests.helpers import connected, query
from tests.inprocess_worker import Workshop

ELSEWHERE = (
    "SET {local} search_path = elsewhere",
    "CREATE TABLE IF NOT EXISTS inflight_jobs (id bigint, fencing_token bigint)",
    "CREATE TEMPORARY TABLE IF NOT EXISTS finished_jobs (id bigint)",
    "CREATE TABLE IF NOT EXISTS job_edges (child_id bigint)",
)
SET = pytest.mark.parametrize("local", ["LOCAL", "SESSION"], ids=["local", "for the session"])


@pytest.fixture(params=WAYS)
def block(request: pytest.FixtureRequest) -> Iterator[Block]:
    """Each of the ways to have a transaction."""
    yield WAYS[request.param]
    if request.param == "django":
        forget_django()


def go_elsewhere(handle: Any, local: str) -> None:
    for statement in ELSEWHERE:
        text = statement.format(local=local)
        handle.execute(sqlalchemy.text(text) if isinstance(handle, Session) else text)


@SET
@pytest.mark.parametrize("keeps", [False, True], ids=["no result", "a result"])
def test_a_job_that_sets_the_search_path_finishes(
    shop: Workshop, block: Block, local: str, keeps: bool
) -> None:
    query(shop.database_url, "CREATE SCHEMA elsewhere")

    def act() -> int:
        with block() as handle:
            go_elsewhere(handle, local)
        return 1

    for name in ("first", "on a connection that is kept"):
        job_id = shop.delivered(act, name=name, result="keep" if keeps else "discard")
        assert shop.work(job_id) == "finished"


@SET
def test_a_job_that_sets_the_search_path_reads_results_of_its_predecessors(
    shop: Workshop, block: Block, local: str
) -> None:
    query(shop.database_url, "CREATE SCHEMA elsewhere")
    found: list[object] = []
    first = shop.delivered(lambda: 42, name="first", result="keep")

    def act() -> None:
        if current_job().attempt > 1:
            found.append(current_job().results)
        with block() as handle:
            go_elsewhere(handle, local)
            found.append(current_job().results)
            if current_job().attempt == 1:
                raise OSError

    assert shop.work(first) == "finished"
    job_id = shop.delivered(act)
    edge = "INSERT INTO job_edges (child_id, parent_id, awaited_id, state) VALUES (%s, %s, %s, 'met')"
    query(shop.database_url, edge, job_id, first, first)
    assert shop.work_to_the_end(job_id) == ["retrying", "finished"]
    assert found == [{first: 42}] * 3


@SET
@pytest.mark.parametrize("cancels", [False, True], ids=["claimed again", "cancelled"])
def test_a_stale_job_that_sets_the_search_path_is_still_refused(
    shop: Workshop, block: Block, local: str, cancels: bool
) -> None:
    query(shop.database_url, "CREATE SCHEMA elsewhere")
    refused: list[type[BaseException]] = []

    def go() -> None:
        with block() as handle:
            go_elsewhere(handle, local)

    def lose() -> None:
        try:
            with block() as handle:
                go_elsewhere(handle, local)
                if cancels:
                    cancel(connected(shop.database_url), [current_job().id])
                else:
                    shop.take_over(current_job().id)
        except (LeaseLostError, JobCancelledError) as error:
            refused.append(type(error))
            raise

    # It leaves its search_path to the next job, on the connection that is kept.
    assert shop.work(shop.delivered(go, name="first")) == "finished"
    word = shop.work(shop.delivered(lose))
    assert (word, refused) == (("cancelled", [JobCancelledError]) if cancels else ("stale", [LeaseLostError]))

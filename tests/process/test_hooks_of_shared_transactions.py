"""Hooks of jobs that share a transaction: called after its commit, once, with what became of each job."""

from collections import Counter
from collections.abc import Mapping

import pytest

from tests import jobs_that_share_with_hooks as jobs
from tests.helpers import query, wait_until
from tests.process.test_shared_transactions import wait_for_the_end
from tests.process.test_stops_of_shared_transactions import (
    FIRST,
    RAN,
    amid_a_batch,
    assert_ends,
    prepare,
    stop,
)
from tests.worker_processes import Yard

HOOKED = {"DRAIN_JOBS": jobs.MODULE}
Call = tuple[str, str, int]


@pytest.fixture
def yard(processes: None, yard: Yard) -> Yard:
    prepare(yard, jobs.TABLE)
    return yard


def calls(yard: Yard) -> Counter[Call]:
    """Calls of hooks: label, outcome, and rows of the job that were committed."""
    return Counter(query(yard.database_url, "SELECT label, word, rows FROM ends"))


def finished(*labels: str) -> list[Call]:
    return [(label, "finished", 1) for label in labels]


def test_hooks_of_a_batch_are_called_after_its_commit(yard: Yard) -> None:
    with amid_a_batch(yard, ["return:x", "hold:1"], **HOOKED) as (worker, holder, _):
        # Hooks are called in order, and this job takes no part.
        alone: list[Call] = [*finished(FIRST), ("return:x", "finished", 0)]
        wait_until(lambda: alone[1] in calls(yard))
        assert calls(yard) == Counter(alone)
        stop(worker)
        holder.rollback()
        assert_ends(worker)
    assert calls(yard) == Counter([*alone, *finished(*RAN, "hold:1")])


@pytest.mark.parametrize(
    "env", [{}, {"LOSE_ANSWER": "before"}, {"LOSE_ANSWER": "after"}], ids=["undone", "lost", "unanswered"]
)
def test_hooks_are_called_once_for_jobs_that_run_again(yard: Yard, env: Mapping[str, str]) -> None:
    """Not for their run in the batch."""
    undoes = [] if env else ["die:shared", "die:alone", "after:x", "twice:x"]
    with amid_a_batch(yard, [*undoes, "hold:1"], **HOOKED, **env) as (worker, holder, ids):
        holder.rollback()
        wait_for_the_end(yard, list(ids.values()))
        stop(worker)
        assert_ends(worker)
    dead = {"die:alone", "twice:x"} & ids.keys()
    assert calls(yard) == Counter(
        [*finished(FIRST, *(ids.keys() - dead)), *((label, "dead", 0) for label in dead)]
    )

"""Jobs that run only after a death: on_failure "only"."""

from collections.abc import Iterator

import pytest

from tests.flows import Flows, flows
from tests.helpers import query


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with flows(database_url, redis_url) as found:
        found.look()
        yield found


def test_a_job_that_stands_by_runs_after_a_death_alone(jobs: Flows) -> None:
    one, other, gone = jobs.stage(), jobs.stage(), jobs.stage()
    rescues = [jobs.stage((parent, "only")) for parent in (one, other, gone)]
    waiter = jobs.stage(rescues[1])
    jobs.die(one, gone)
    jobs.discard(gone)
    jobs.look()
    assert jobs.states(*rescues, waiter) == ["waiting", "blocked", "waiting", "blocked"]
    jobs.finish(other)
    jobs.look()
    assert jobs.states(rescues[1], waiter) == ["finished", "waiting"]
    assert query(jobs.url, "SELECT superseded_by FROM finished_jobs WHERE id = %s", rescues[1]) == [(other,)]


def test_a_job_that_is_not_needed_waits_for_no_other(jobs: Flows) -> None:
    first, second, third = [jobs.stage() for _ in range(3)]
    child = jobs.stage((first, "only"), second)
    both = jobs.stage((first, "only"), third)
    jobs.die(third)
    jobs.finish(first)
    jobs.look()
    assert (jobs.state(child), jobs.edges(child)) == ("finished", ["idle", "idle"])
    assert jobs.state(both) in {"cancelled", "finished"}


def test_only_markers_pass_on_a_death_that_holds_them(jobs: Flows) -> None:
    parent = jobs.stage()
    held = jobs.stage((parent, "hold"))
    rescue = jobs.stage((held, "only"))
    jobs.die(parent)
    jobs.look()
    assert jobs.states(held, rescue) == ["blocked", "blocked"]

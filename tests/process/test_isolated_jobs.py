"""A job that is registered as isolated runs in a child of its own, under the claim of its worker."""

import signal
from collections import Counter

from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, end, leading, query, wait_until
from tests.worker_processes import Yard, children


def test_it_runs_in_a_child_of_the_worker_beside_jobs_that_do_not(yard: Yard) -> None:
    ids = yard.pushed(jobs.isolated, "a", "b") + yard.pushed(jobs.note, "c")
    ids += yard.pushed(jobs.isolated_in_transaction, "d")
    with yard.working("--prefetch", "4") as command:
        (worker,) = wait_until(lambda: children(command), PATIENCE_SECONDS)
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert yard.effects() == [f"a of {worker}", f"b of {worker}", "c", "d"]
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(1,)]


def test_no_module_that_the_worker_imports_at_need_is_half_imported_in_it(yard: Yard) -> None:
    """Its supervisor has imported msgspec, which a thread of the worker may otherwise be importing as it is forked."""
    yard.pushed(jobs.isolated_imported, "msgspec")
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.effects() == ["msgspec True"]


def test_its_death_is_a_failed_attempt_and_the_worker_lives_on(yard: Yard) -> None:
    (killer,) = yard.pushed(jobs.isolated_killer, "killer")
    (leaving,) = yard.pushed(jobs.isolated_exit, "now")
    others = yard.pushed(jobs.note, "a", "b")
    with leading(yard.env()), yard.working("--prefetch", "4") as command:
        yard.wait_for("dead_jobs", [killer, leaving])
        yard.wait_for("finished_jobs", others)
        assert not command.events("worker_died")
        assert end(command) == 0
    assert (yard.row(killer)["attempts"], yard.row(killer)["reason"]) == (2, "failed")
    assert "its process was killed by SIGKILL" in yard.row(killer)["explanation"]
    assert "SystemExit: now" in yard.row(leaving)["explanation"]
    _, first, *_ = yard.row(leaving)["last_error"]["traceback"].splitlines()
    assert first.endswith("in isolated_exit")
    assert Counter(yard.effects()) == Counter(["killer", "killer", "a", "b"])


def test_it_is_interrupted_when_its_time_is_over(yard: Yard) -> None:
    (slow,) = yard.pushed(jobs.isolated_sleeper, "slow")
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert "timeout of 1 s" in yard.row(slow)["explanation"]


def test_a_worker_that_stops_now_stops_it_too(yard: Yard) -> None:
    (waiting,) = yard.pushed(jobs.isolated_waiter, "waiting")
    with yard.working("--grace-seconds", "0.1") as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 0
    row = yard.row(waiting)
    assert (row["attempts"], row["last_error"]["type"]) == (0, "drain.workers.errors.WorkerStoppedError")

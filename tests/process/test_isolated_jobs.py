"""A job that is registered as isolated runs in a child of its own, under the claim of its worker."""

import signal
from collections import Counter

from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, end, leading, query, wait_until
from tests.worker_processes import Yard, children


def test_an_isolated_job_runs_in_a_child_alongside_other_jobs(yard: Yard) -> None:
    ids = yard.pushed(jobs.isolated, "a", "b") + yard.pushed(jobs.note, "c")
    ids += yard.pushed(jobs.isolated_in_transaction, "d")
    with yard.working("--prefetch", "4") as command:
        (worker,) = wait_until(lambda: children(command), PATIENCE_SECONDS)
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert yard.effects() == [f"a of {worker}", f"b of {worker}", "c", "d"]
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(1,)]


def test_lazily_imported_modules_are_complete_in_an_isolated_job(yard: Yard) -> None:
    """Its supervisor has imported msgspec, which a thread of the worker may otherwise be importing as it is forked."""
    yard.pushed(jobs.isolated_imported, "msgspec")
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.effects() == ["msgspec True"]


def test_the_death_of_an_isolated_job_fails_only_its_attempt(yard: Yard) -> None:
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


def test_an_isolated_job_is_interrupted_at_its_timeout(yard: Yard) -> None:
    (slow,) = yard.pushed(jobs.isolated_sleeper, "slow")
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert "timeout of 1 s" in yard.row(slow)["explanation"]


def test_a_stopping_worker_stops_its_isolated_job_too(yard: Yard) -> None:
    (waiting,) = yard.pushed(jobs.isolated_waiter, "waiting")
    with yard.working("--grace-seconds", "0.1") as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 0
    row = yard.row(waiting)
    assert (row["attempts"], row["last_error"]["type"]) == (0, "drain.workers.errors.WorkerStoppedError")

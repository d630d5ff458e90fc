"""Commits that wait for the disk together: a crash of PostgreSQL undoes all of a transaction, or nothing of it."""

import os
import signal
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from drain.config import Settings
from drain.embedded import Services
from drain.errors import UnavailableError
from drain.tables import claims, finishes, staged
from drain.tables.claims import Claim
from drain.wire import QueueReader
from drain.workers.entry import Worker
from drain.workers.handover.journal import Journal
from drain.workers.handover.recovery import recover
from drain.workers.lease.database import Database
from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, query, wait_until
from tests.inprocess_worker import Workshop
from tests.worker_processes import Yard

pytestmark = pytest.mark.usefixtures("processes")

SURVIVES = pytest.mark.parametrize("waits", [True, False], ids=["waits", "does not wait"])


@pytest.fixture
def yard(own: Services) -> Yard:
    return Yard(own.database_url, own.redis_url)


def let_nothing_reach_the_disk_by_itself(own: Services) -> None:
    """Stop the server's process that writes the log in the background, until the crash."""
    ((pid,),) = query(own.database_url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(pid, signal.SIGSTOP)


def crash(own: Services) -> None:
    own.postgres.kill()
    own.postgres.start()


def claimed(own: Services, label: str) -> Claim:
    """Claim a job, durably."""
    with psycopg.connect(own.database_url, autocommit=True) as connection:
        (job_id,) = Yard(own.database_url, own.redis_url).stage(jobs.note_in_transaction, label)
        staged.move(connection, [job_id], last_delivery=job_id)
        (claim,) = claims.claim_many(connection, {job_id: job_id + 1}, worker="here", limits={})
    return claim


def commit(own: Services, claim: Claim, label: str, *, waits: bool) -> None:
    """Commit an effect and the finish of the job."""
    with psycopg.connect(own.database_url) as connection:
        connection.execute("INSERT INTO effects (label) VALUES (%s)", (label,))
        assert finishes.finish_and_commit(connection, claim, waits=waits)


def place(own: Services, claim: Claim) -> str:
    return Yard(own.database_url, own.redis_url).place(claim.id)


@SURVIVES
def test_a_crash_undoes_an_asynchronous_commit_with_its_finish_and_writes(own: Services, waits: bool) -> None:
    claim = claimed(own, "a")
    let_nothing_reach_the_disk_by_itself(own)
    commit(own, claim, "a", waits=waits)
    assert (place(own, claim), jobs.effects(own.database_url)) == ("finished_jobs", ["a"])
    crash(own)

    after = ("finished_jobs", ["a"]) if waits else ("inflight_jobs", [])
    assert (place(own, claim), jobs.effects(own.database_url)) == after
    with psycopg.connect(own.database_url, autocommit=True) as connection:
        assert finishes.undone_by_crash(connection, [claim]) == (set() if waits else {claim.id})
        # The claim was durable: whoever claims next has another token.
        assert waits or finishes.finish(connection, claim)


def test_a_finish_undone_by_a_crash_is_not_confused_with_a_later_one(own: Services) -> None:
    """The worker asks late, when the lease has run out and another worker has claimed the job."""
    claim = claimed(own, "a")
    let_nothing_reach_the_disk_by_itself(own)
    commit(own, claim, "a", waits=False)
    crash(own)
    shop = Workshop(own.database_url, None)  # type: ignore[arg-type]
    later = shop.take_over(claim.id)

    with psycopg.connect(own.database_url, autocommit=True) as connection:
        assert finishes.undone_by_crash(connection, [claim]) == {claim.id}
        assert finishes.finish(connection, later)
        assert finishes.undone_by_crash(connection, [claim]) == {claim.id}
        assert finishes.undone_by_crash(connection, [later]) == set()


@pytest.mark.parametrize("ask", ["undone by crash", "is finished", "of nothing"])
def test_asking_whether_a_finish_is_durable_makes_it_durable(own: Services, ask: str) -> None:
    claim = claimed(own, "a")
    let_nothing_reach_the_disk_by_itself(own)
    commit(own, claim, "a", waits=False)
    with psycopg.connect(own.database_url, autocommit=True) as connection:
        if ask == "is finished":
            assert finishes.is_finished(connection, claim)
        elif ask == "of nothing":
            # Where no row is read, nothing but the message is written.
            assert finishes.undone_by_crash(connection, []) == set()
        else:
            assert finishes.undone_by_crash(connection, [claim]) == set()
    crash(own)

    assert (place(own, claim), jobs.effects(own.database_url)) == ("finished_jobs", ["a"])


def test_an_unpromoted_replica_counts_as_unavailable_not_broken(own: Services) -> None:
    """As after a failover: the finisher then waits, as for any server that accepts no writes for now."""
    claim = claimed(own, "a")
    commit(own, claim, "a", waits=False)
    query(own.database_url, "COPY (SELECT) TO PROGRAM 'cat > standby.signal'")
    own.postgres.stop()
    own.postgres.start()
    try:
        with closing(Database(own.database_url)) as database:
            for ask in (
                lambda c: finishes.undone_by_crash(c, [claim]),
                lambda c: finishes.is_finished(c, claim),
            ):
                with pytest.raises(UnavailableError, match="recovery"):
                    database.ask(ask, patience_seconds=0)
    finally:
        query(own.database_url, "SELECT pg_promote()")


def test_a_session_without_synchronous_commit_still_makes_other_commits_durable(own: Services) -> None:
    claim = claimed(own, "a")
    let_nothing_reach_the_disk_by_itself(own)
    commit(own, claim, "a", waits=False)
    with psycopg.connect(own.database_url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        assert finishes.undone_by_crash(connection, [claim]) == set()
    crash(own)

    assert place(own, claim) == "finished_jobs"


def test_a_job_whose_commit_is_undone_runs_again_and_leaves_one_effect(
    yard: Yard, own: Services, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with yard.working() as worker:
        (job_id,) = yard.pushed(jobs.commit_and_wait, str(go))
        # The heartbeat of the lease, ten seconds later, would make the commit durable.
        let_nothing_reach_the_disk_by_itself(own)
        wait_until(yard.effects, PATIENCE_SECONDS)
        crash(own)
        assert yard.effects() == []
        go.touch()
        wait_until(lambda: worker.events("job_interrupted"), PATIENCE_SECONDS)

        def is_finished() -> bool:
            yard.redeliver()
            return yard.place(job_id) == "finished_jobs"

        wait_until(is_finished, PATIENCE_SECONDS)
        (line,) = worker.events("job_interrupted")
    assert "PostgreSQL crashed before" in line["message"]
    assert yard.effects() == [str(go)]
    assert yard.row(job_id)["attempts"] == 1


def test_a_failure_after_the_jobs_commit_is_reported_and_changes_nothing(yard: Yard) -> None:
    with yard.working() as worker:
        (job_id,) = yard.pushed(jobs.commit_and_fail, "a")
        yard.wait_for("finished_jobs", [job_id])
        wait_until(lambda: worker.events("failed_after_finish"), PATIENCE_SECONDS)
    assert yard.effects() == ["a"]


def test_a_successor_does_not_finish_a_job_whose_commit_was_undone(own: Services) -> None:
    """The process dies between the commit and the disk, and the server with it."""
    lasting, undone = claimed(own, "lasting"), claimed(own, "undone")
    commit(own, lasting, "lasting", waits=False)
    journal = Journal()
    for claim in (lasting, undone):
        journal.commit(journal.add(claim, claim.id + 1))
    settings = Settings(database_url=own.database_url, redis_url=own.redis_url)
    recover(journal, settings, "was killed")

    assert (place(own, lasting), place(own, undone)) == ("finished_jobs", "inflight_jobs")
    assert journal.entries() == []
    with closing(QueueReader(own.redis_url, settings.namespace)) as redis:
        listed = [each for page in redis.listed("default") for each in page]
    assert listed == [(undone.id, undone.id + 1)]


def test_a_worker_with_one_job_at_a_time_commits_synchronously(own: Services) -> None:
    with closing(Worker(Settings(database_url=own.database_url))) as worker:
        shop = Workshop(own.database_url, worker)
        job_id = shop.deliver(jobs.commit_and_fail, "a")
        let_nothing_reach_the_disk_by_itself(own)
        assert worker.execute(job_id) == "finished"
    crash(own)
    assert shop.whereabouts(job_id) == "finished_jobs"
    assert jobs.effects(own.database_url) == ["a"]

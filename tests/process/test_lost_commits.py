"""PostgreSQL and a worker process die together, after a job has committed its own finish and before that is durable."""

from contextlib import closing

import psycopg

from drain.config import Settings
from drain.tables import claims, finishes, staged
from drain.tables.claims import Claim
from drain.wire import QueueReader
from drain.workers.handover.journal import Journal, Progress
from drain.workers.handover.recovery import recover
from tests import jobs_in_batches as jobs
from tests.helpers import NAMESPACE
from tests.worker_processes import Yard


def claimed(yard: Yard, label: str) -> Claim:
    (job_id,) = yard.stage(jobs.note_in_transaction, label)
    with psycopg.connect(yard.database_url, autocommit=True) as connection:
        staged.move(connection, [job_id], last_delivery=job_id)
        (claim,) = claims.claim_many(connection, {job_id: job_id + 1}, worker="here", limits={})
    return claim


def test_a_successor_does_not_finish_a_job_whose_commit_was_lost(yard: Yard) -> None:
    lasting, lost = claimed(yard, "lasting"), claimed(yard, "lost")
    with psycopg.connect(yard.database_url) as connection:
        assert finishes.finish_and_commit(connection, lasting)
    journal = Journal()
    for claim in (lasting, lost):
        journal.commit(journal.add(claim, claim.id + 1))
    assert {entry.progress for entry in journal.entries()} == {Progress.COMMITTED}
    settings = Settings(database_url=yard.database_url, redis_url=yard.redis_url, namespace=NAMESPACE)
    recover(journal, settings, "was killed")

    assert (yard.place(lasting.id), yard.place(lost.id)) == ("finished_jobs", "inflight_jobs")
    assert yard.row(lost.id)["lease_expires_at"] is None
    assert journal.entries() == []
    with closing(QueueReader(yard.redis_url, NAMESPACE)) as redis:
        listed = [each for page in redis.listed("default") for each in page]
    assert listed == [(lost.id, lost.id + 1)]


def test_a_successor_finishes_ended_jobs_and_charges_only_the_running_one(
    yard: Yard,
) -> None:
    ended, ran, waited = (claimed(yard, label) for label in ("ended", "ran", "waited"))
    journal = Journal()
    slots = {claim.id: journal.add(claim, claim.id + 1) for claim in (ended, ran, waited)}
    for claim in (ended, ran):
        journal.begin(slots[claim.id], float("inf"))
    journal.finish(slots[ended.id])
    settings = Settings(database_url=yard.database_url, redis_url=yard.redis_url, namespace=NAMESPACE)
    recover(journal, settings, "was killed")

    assert yard.place(ended.id) == "finished_jobs"
    charged, given_back = yard.row(ran.id), yard.row(waited.id)
    assert (charged["attempts"], charged["last_error"]["message"]) == (1, "its worker process was killed")
    assert (given_back["attempts"], given_back["last_error"], given_back["next_run_at"]) == (0, None, None)

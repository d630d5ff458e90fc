"""A job that is cancelled while a worker has it keeps its place until the worker lets go, or its lease is over."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from drain import cancel, queues
from drain.admission.rules import Rules
from drain.audit.admission import AdmissionCheck
from drain.database import postgres
from drain.read import causes
from drain.read.explain import explain
from drain.tables import cancellations, claims, leases
from drain.tables.claims import Claim
from drain.tables.dead import Selection, revive
from drain.tables.pauses import Pauses
from drain.tables.rules import RulesRow
from tests.admitting import QUEUE, Leader, admitting, finish, ids_of, stage
from tests.helpers import new_enqueuer, query


def claim(leader: Leader, job_id: int) -> Claim:
    claimed = claims.claim(leader.connection, job_id, worker="host:42", limits={})
    assert claimed is not None
    return claimed


def cancel_now(database_url: str, job_id: int) -> None:
    with psycopg.connect(database_url) as connection:
        assert cancel(connection, job_id).running == (job_id,)


def nothing_begins(leader: Leader) -> bool:
    return not leader.settle(0.1)


def seen_by_the_audit(leader: Leader) -> list[tuple[str, int]]:
    check = AdmissionCheck(leader.connection)
    check.look()
    return [(breach.check, breach.count) for breach in check.breaches()]


def end_leases(database_url: str) -> None:
    query(database_url, "UPDATE cancelled_claims SET lease_expires_at = now()")


RULES = [Rules(QUEUE, running=1), Rules(QUEUE, running_per_key=1), Rules(QUEUE, ordered=True)]


def test_a_revived_job_holds_two_slots_while_it_may_run_twice(database_url: str) -> None:
    (first,) = stage(database_url)
    with admitting(database_url, Rules(QUEUE, running=2)) as leader:
        assert ids_of(leader.admit_all(1)) == [first]
        claim(leader, first)
        cancel_now(database_url, first)
        with psycopg.connect(database_url) as connection:
            assert revive(connection, Selection()) == 1
        # Between two looks at what runs.
        leader.queue._looked_at = float("inf")
        assert ids_of(leader.admit_all(1)) == [first]
        (second,) = stage(database_url)
        assert nothing_begins(leader)
        leader.queue._looked_at = 0.0
        assert nothing_begins(leader)
        end_leases(database_url)
        assert ids_of(leader.admit_all(1)) == [second]


@pytest.mark.parametrize("rules", RULES, ids=["running", "of a key", "ordered"])
@pytest.mark.parametrize("by", ["its worker", "the end of its lease"])
def test_a_job_cancelled_while_running_keeps_its_slot_until_freed(
    database_url: str, rules: Rules, by: str
) -> None:
    first, second, third = stage(database_url, 3, key="a")
    with admitting(database_url, rules) as leader:
        assert ids_of(leader.admit_all(1)) == [first]
        claimed = claim(leader, first)
        cancel_now(database_url, first)
        assert nothing_begins(leader)
        if by == "its worker":
            assert cancellations.confirm_end(leader.connection, claimed)
            assert query(database_url, "SELECT FROM cancelled_claims") == []
        else:
            end_leases(database_url)
        assert ids_of(leader.admit_all(1)) == [second]
        finish(database_url, [second])
        assert ids_of(leader.admit_all(1)) == [third]


def test_the_next_leader_counts_cancelled_jobs_that_have_not_ended(database_url: str) -> None:
    first, second = stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        leader.admit_all(1)
        claim(leader, first)
        cancel_now(database_url, first)
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        assert nothing_begins(leader)
        end_leases(database_url)
        assert ids_of(leader.admit_all(1)) == [second]


def test_a_job_revived_during_its_cancelled_attempt_needs_another_slot(
    database_url: str,
) -> None:
    first, second, _ = stage(database_url, 3)
    with admitting(database_url, Rules(QUEUE, running=2)) as leader:
        leader.admit_all(2)
        claim(leader, first)
        cancel_now(database_url, first)
        revive(leader.connection, Selection())
        # However long sweeps are apart on a busy machine.
        leader.queue.wake()
        assert nothing_begins(leader)
        finish(database_url, [second])
        assert ids_of(leader.settle(0.1, least=1)) == [first]


def test_a_job_cancelled_before_it_runs_frees_its_slot_at_once(database_url: str) -> None:
    first, second, third = stage(database_url, 3)
    with admitting(database_url, Rules(QUEUE, running=1)) as leader:
        leader.admit_all(1)
        with psycopg.connect(database_url) as connection:
            assert cancel(connection, first).waiting == (first,)
        assert ids_of(leader.admit_all(1)) == [second]
        # Its worker has died: the lease is over.
        claim(leader, second)
        query(database_url, "UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 s'")
        cancel_now(database_url, second)
        assert ids_of(leader.admit_all(1)) == [third]


def test_returning_a_cancelled_job_before_its_start_frees_its_slot(
    database_url: str,
) -> None:
    first, second = stage(database_url, 2)
    with admitting(database_url, Rules(QUEUE, running=1)) as leader:
        leader.admit_all(1)
        claimed = claim(leader, first)
        cancel_now(database_url, first)
        assert leases.release(leader.connection, [claimed]) == []
        assert query(database_url, "SELECT FROM cancelled_claims") == []
        assert ids_of(leader.admit_all(1)) == [second]


def test_reports_count_cancelled_jobs_as_the_leader_does(database_url: str, redis_url: str) -> None:
    with psycopg.connect(database_url) as application:
        queues.set(application, QUEUE, running=1, ordered=True)
    first, second = stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, running=1, ordered=True)) as leader:
        leader.admit_all(1)
        claim(leader, first)
        cancel_now(database_url, first)
        rules = RulesRow(QUEUE, running=1, ordered=True)
        standing = causes.read_standings(leader.connection, [rules], Pauses())[QUEUE]
        assert (standing.running, standing.is_full, standing.full_keys) == (1, True, {"a"})
        with (
            new_enqueuer(database_url, redis_url),
            closing(postgres.connect(database_url, "test")) as connection,
        ):
            told = explain(connection, None, second)
        assert told.finding.why == (
            "the queue is ordered, and job 1 with key a was cancelled but is still running on host:42"
        )
        query(database_url, "UPDATE queues SET changed_at = now() - interval '1 day'")
        assert seen_by_the_audit(leader) == []
        # As by a leader that did not count it.
        query(
            database_url,
            "WITH moved AS (DELETE FROM staged_jobs RETURNING *) INSERT INTO inflight_jobs (id, job_name, job_args, "
            "job_kwargs, queue, priority, scheduled_at, staged_at, delivery, key) SELECT id, job_name, job_args, "
            "job_kwargs, queue, priority, scheduled_at, staged_at, 9, key FROM moved",
        )
        assert set(seen_by_the_audit(leader)) == {("limits", 2)}


def test_cancelled_claims_with_an_expired_lease_are_deleted(database_url: str) -> None:
    (first,) = stage(database_url)
    with admitting(database_url, Rules(QUEUE, running=1)) as leader:
        leader.admit_all(1)
        claim(leader, first)
        cancel_now(database_url, first)
        cancellations.prune(leader.connection)
        assert query(database_url, "SELECT id FROM cancelled_claims") == [(first,)]
        end_leases(database_url)
        cancellations.prune(leader.connection)
        assert query(database_url, "SELECT id FROM cancelled_claims") == []

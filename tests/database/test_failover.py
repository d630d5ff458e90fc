"""Histories of a database that lost transactions: ids and tokens are given out again, and name other claims.

After a failover to a replica that lagged behind, or in a restored copy, a worker that goes on holds a claim that the
database has never seen. Here its row is rewritten, as the other history has it.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from drain.config import Settings
from drain.database import postgres
from drain.database.postgres import Connection
from drain.tables import cancellations, claims, finishes, leases, outcomes
from drain.tables.claims import Claim
from drain.tables.fences import Fenced
from drain.workers import LeaseLostError, current_job
from drain.workers.handover.journal import Journal
from drain.workers.handover.recovery import recover
from tests.blocks import WAYS, Block, forget_django
from tests.helpers import connected, query
from tests.inprocess_worker import Workshop, leave

ERROR = {"type": "ValueError", "message": "late", "traceback": "Traceback"}
ANOTHER_ROW = "salt = salt + 1"
ANOTHER_CLAIM = "claimed_by = 'another process'"
# The row in another history, which lacks the claim.
HISTORIES = {
    "another row": ANOTHER_ROW,
    "a row from before version 2": "salt = NULL",
    "a claim by another process": ANOTHER_CLAIM,
    "no claim": "fencing_token = 0, attempts = 0, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL",
}
with_each_history = pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)

Record = Callable[[Connection, Claim], object]
RECORDS: dict[str, Record] = {
    "finish": finishes.finish,
    "finish with its result": lambda connection, claim: finishes.finish(connection, claim, "1"),
    "finish and commit": finishes.finish_and_commit,
    "finish and commit without a wait": partial(finishes.finish_and_commit, waits=False),
    "finish many": lambda connection, claim: finishes.finish_many(connection, [claim]),
    "finish many with their results": lambda connection, claim: finishes.finish_many(
        connection, [claim], {claim.id: "1"}
    ),
    "extend": lambda connection, claim: leases.extend_many(connection, [claim]),
    "release": lambda connection, claim: leases.release(connection, [claim]),
    "retry": lambda connection, claim: outcomes.retry_later(connection, claim, 0, ERROR),
    "defer": lambda connection, claim: outcomes.defer(connection, claim, 60),
    "slow down": lambda connection, claim: outcomes.slow_down(connection, claim, 60),
    "interrupt": lambda connection, claim: outcomes.interrupt(connection, claim, 60, ERROR),
    "bury": lambda connection, claim: outcomes.bury_claimed(
        connection, claim, reason="failed", explanation="why", error=ERROR
    ),
    "look": leases.is_current,
    "read": lambda connection, claim: claims.read_claim(connection, claim, {}),
}


@pytest.fixture
def connection(shop: Workshop) -> Iterator[Connection]:
    with closing(postgres.connect(shop.database_url, "tests")) as opened:
        yield opened


@pytest.fixture(params=WAYS)
def block(request: pytest.FixtureRequest) -> Iterator[Block]:
    """Each of the ways to have a transaction."""
    yield WAYS[request.param]
    if request.param == "django":
        forget_django()


def claimed(shop: Workshop, connection: Connection) -> Claim:
    job_id = shop.delivered(lambda: None)
    claim = claims.claim(connection, job_id, worker="this process", limits={})
    assert claim is not None
    return claim


@with_each_history
def test_a_claim_unknown_to_the_database_records_nothing(
    shop: Workshop, connection: Connection, history: str
) -> None:
    claim = claimed(shop, connection)
    shop.set(claim.id, f"{history} WHERE")
    row = shop.row(claim.id)
    for name, record in RECORDS.items():
        assert not record(connection, claim), name
        assert shop.row(claim.id) == row, name


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_row_without_a_salt_is_recorded_as_any_other(
    shop: Workshop, connection: Connection, record: Record
) -> None:
    job_id = shop.delivered(lambda: None)
    shop.set(job_id, "salt = NULL WHERE")
    claim = claims.claim(connection, job_id, worker="this process", limits={})
    assert claim is not None
    assert record(connection, claim)


def test_claims_of_two_processes_are_not_recorded_together(shop: Workshop, connection: Connection) -> None:
    claim = claimed(shop, connection)
    with pytest.raises(ValueError, match="expected claims of one process, not of another, this process"):
        finishes.finish_many(connection, [claim, claim._replace(id=claim.id + 1, worker="another")])


@pytest.mark.parametrize("finish", [finishes.finish_once, finishes.finish_many], ids=["one", "many"])
def test_the_finish_of_another_claim_is_not_mistaken_for_this_one(
    shop: Workshop, connection: Connection, finish: Callable[[Connection, Any], object]
) -> None:
    claim = claimed(shop, connection)
    shop.set(claim.id, f"{ANOTHER_ROW}, {ANOTHER_CLAIM} WHERE")
    assert claim.salt is not None
    other = claim._replace(salt=claim.salt + 1, worker="another process")
    assert finish(connection, [other] if finish is finishes.finish_many else other)

    assert finishes.is_finished(connection, other)
    assert finishes.undone_by_crash(connection, [other]) == set()
    assert not finishes.is_finished(connection, claim)
    assert not finishes.finish(connection, claim)
    assert finishes.undone_by_crash(connection, [claim]) == {claim.id}


def test_the_death_of_another_row_is_not_mistaken_for_this_one(
    shop: Workshop, connection: Connection
) -> None:
    def bury(fence: Fenced) -> bool:
        return outcomes.bury_claimed(connection, fence, reason="cancelled", explanation="why")

    claim = claimed(shop, connection)
    shop.set(claim.id, f"{ANOTHER_ROW} WHERE")
    assert claim.salt is not None
    other = claim._replace(salt=claim.salt + 1)
    assert bury(other)
    assert (bury(other), bury(claim)) == (True, False)
    query(shop.database_url, "UPDATE dead_jobs SET fencing_token = fencing_token + 1")
    assert cancellations.is_cancelled(connection, other)
    assert not cancellations.is_cancelled(connection, claim)


@pytest.mark.parametrize("keeps", [False, True], ids=["no result", "a result"])
@with_each_history
def test_a_jobs_writes_are_rolled_back_if_another_claim_holds_its_row(
    shop: Workshop, block: Block, history: str, keeps: bool
) -> None:
    errors: list[type[BaseException]] = []

    def act() -> int:
        try:
            with block() as session:
                leave(session, "written")
                shop.set(current_job().id, f"{history} WHERE")
        except LeaseLostError as error:
            errors.append(type(error))
            raise
        return 1

    job_id = shop.delivered(act, result="keep" if keeps else "discard")
    assert shop.work(job_id) == "stale"
    assert (errors, shop.effects(), shop.whereabouts(job_id)) == ([LeaseLostError], [], "inflight_jobs")
    ((refused, by),) = query(shop.database_url, "SELECT id, claimed_by FROM stale_finishes")
    assert (refused, by != "another process") == (job_id, True)


@with_each_history
def test_a_successor_records_nothing_under_a_claim_from_another_history(
    shop: Workshop, redis_url: str, history: str
) -> None:
    held: list[Claim] = []
    for _ in range(4):
        job_id = shop.delivered(lambda: None)
        (claim,) = claims.claim_many(
            connected(shop.database_url), {job_id: job_id + 1}, worker="dead process", limits={}
        )
        held.append(claim)
    journal = Journal()
    ended, committed, ran, _ = [journal.add(claim, claim.id + 1) for claim in held]
    journal.finish(ended)
    journal.commit(committed)
    journal.begin(ran, float("inf"))
    query(shop.database_url, f"UPDATE inflight_jobs SET {history}")
    rows = [shop.row(claim.id) for claim in held]
    recover(journal, Settings(database_url=shop.database_url, redis_url=redis_url), "was killed")

    assert [shop.row(claim.id) for claim in held] == rows
    assert journal.entries() == []


def test_a_worker_of_version_5_finishes_by_id_and_token(shop: Workshop, connection: Connection) -> None:
    for call in (
        "drain_finish(%s::bigint, %s::bigint)",
        "drain_finish_with_result(%s::bigint, %s::bigint, '1')",
    ):
        claim = claimed(shop, connection)
        for token, finished in ((0, False), (2, False), (1, True), (1, False)):
            assert query(shop.database_url, f"SELECT {call}", claim.id, token) == [(finished,)]
        assert shop.row(claim.id)["finished_by"] == "this process"
    assert query(shop.database_url, "SELECT result FROM finished_jobs ORDER BY id") == [(None,), (1,)]

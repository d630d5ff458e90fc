"""Jobs that share a transaction: each exactly once, however one of them, or its worker, ends."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest

import drain
from drain.workers import job
from tests import jobs_that_share as jobs
from tests.helpers import connected, query, wait_until
from tests.worker_processes import Yard

BOTH = pytest.mark.parametrize("act", [jobs.act, jobs.act_by_session], ids=["psycopg", "sqlalchemy"])
PLAIN = 12


@pytest.fixture
def yard(processes: None, yard: Yard) -> Yard:
    for statement in jobs.TABLES.split(";"):
        query(yard.database_url, statement)
    return yard


def run(
    yard: Yard, act: Any, *actions: str, interrupted: list[Any] | None = None, **env: str
) -> dict[str, int]:
    """Run jobs with these actions between plain ones, until all have ended; return ids by action.

    Args:
        interrupted: Receives the log lines of jobs whose commit was undone.
    """
    labels: list[str] = []
    for number, action in enumerate(("write:first", *actions, "write:last")):
        labels += [f"write:{number} {each}" for each in range(PLAIN)]
        labels += action.split("+")
    labels += [f"write:end {each}" for each in range(PLAIN)]
    # The first of a name runs alone.
    (first,) = yard.pushed(act, "write:once")
    ids = yard.pushed(act, *labels)
    variables = {"DRAIN_JOBS": jobs.MODULE, "SHARE_FOR_SECONDS": "3"} | env
    with yard.working("--processes", "1", "--prefetch", "300", **variables) as worker:
        wait_for_the_end(yard, [first, *ids])
        if interrupted is not None:
            interrupted += worker.events("job_interrupted")
    return dict(zip(labels, ids, strict=True))


def wait_for_the_end(yard: Yard, ids: Sequence[int]) -> None:
    """Redeliver once no job has ended for a second: a job that waits in the worker would be claimed too late."""
    since, before = monotonic(), -1

    def have_ended() -> bool:
        nonlocal since, before
        ((left,),) = query(
            yard.database_url,
            "SELECT count(*) FROM inflight_jobs WHERE id = ANY (%s) AND claimed_by IS DISTINCT FROM 'thief'",
            list(ids),
        )
        if left != before:
            since, before = monotonic(), left
        elif monotonic() > since + 1:
            yard.redeliver()
            since = monotonic()
        return bool(left == 0)

    wait_until(have_ended)


def written(yard: Yard) -> Counter[str]:
    return Counter(label for (label,) in query(yard.database_url, "SELECT label FROM written"))


def runs(yard: Yard, label: str) -> list[bool]:
    """Whether each run of the job shared its transaction."""
    return [
        shared for (shared,) in query(yard.database_url, "SELECT shared FROM runs WHERE label = %s", label)
    ]


def ran_again(yard: Yard) -> set[str]:
    """Jobs that ran more than once."""
    rows = query(yard.database_url, "SELECT label FROM runs GROUP BY label HAVING count(*) > 1")
    return {label for (label,) in rows}


def sizes(yard: Yard) -> list[int]:
    return [
        size for (size,) in query(yard.database_url, "SELECT count(*)::integer FROM written GROUP BY xid")
    ]


def assert_plain_ones_are_exact(yard: Yard, ids: dict[str, int], *, charged: int = 0) -> None:
    """Each plain job has left one row, and no more than `charged` have failed attempts."""
    plain = {label: job_id for label, job_id in ids.items() if label.startswith("write:")}
    found = written(yard)
    assert {label: found[label] for label in plain} == dict.fromkeys(plain, 1)
    assert yard.all_are("finished_jobs", list(plain.values()))
    assert sum(yard.row(job_id)["attempts"] > 1 for job_id in plain.values()) <= charged


@BOTH
def test_short_jobs_share_transactions(yard: Yard, act: Any) -> None:
    ids = yard.pushed(act, *(f"write:{number}" for number in range(300)))
    with yard.working("--processes", "1", DRAIN_JOBS=jobs.MODULE, SHARE_FOR_SECONDS="3"):
        yard.wait_for("finished_jobs", ids)
    assert written(yard) == {f"write:{number}": 1 for number in range(300)}
    assert 20 < max(sizes(yard)) <= 50


@pytest.mark.parametrize("way", jobs.REFUSED)
def test_what_would_end_the_transaction_is_refused_before_it_is_sent(yard: Yard, way: str) -> None:
    """Only this job fails."""
    ids = run(yard, jobs.act, f"end:{way}")
    assert_plain_ones_are_exact(yard, ids)
    assert runs(yard, f"end:{way}") == [True, False]
    assert written(yard)[f"end:{way}"] == 1
    assert ran_again(yard) == {f"end:{way}"}
    row = yard.row(ids[f"end:{way}"])
    assert (row["place"], row["attempts"]) == ("finished_jobs", 2)
    assert "Transaction" in str(row["last_error"]) or "transaction" in str(row["last_error"])


@pytest.mark.parametrize("way", jobs.ENDING)
def test_a_job_that_ends_the_transaction_otherwise_costs_no_other_its_writes(yard: Yard, way: str) -> None:
    ids = run(yard, jobs.act, f"end:{way}")
    assert_plain_ones_are_exact(yard, ids)
    # It has lost the others' writes with its own, so all ran again.
    assert runs(yard, f"end:{way}") == [True, False]
    assert len(ran_again(yard)) > 1
    assert yard.place(ids[f"end:{way}"]) == "finished_jobs"
    assert written(yard)[f"end:{way}"] == 1


def test_commit_in_a_session_is_refused(yard: Yard) -> None:
    ids = run(yard, jobs.act_by_session, "end:session", "end:libpq")
    assert_plain_ones_are_exact(yard, ids)
    assert runs(yard, "end:session")[0]
    assert written(yard)["end:session"] == written(yard)["end:libpq"] == 1


@BOTH
@pytest.mark.parametrize("action", ["fail", "break"])
def test_a_failed_job_undoes_only_its_own_writes(yard: Yard, act: Any, action: str) -> None:
    ids = run(yard, act, f"{action}:once")
    assert_plain_ones_are_exact(yard, ids)
    # After an error of the database, the first attempt runs again alone.
    assert runs(yard, f"{action}:once") == [True, False] + [False] * (action == "break")
    assert ran_again(yard) == {f"{action}:once"}
    assert written(yard)[f"{action}:once"] == 1
    assert yard.row(ids[f"{action}:once"])["attempts"] == 2


def test_a_job_that_fails_after_its_block_stays_finished(yard: Yard) -> None:
    ids = run(yard, jobs.act, "after:x")
    assert_plain_ones_are_exact(yard, ids)
    assert runs(yard, "after:x") == [True]
    assert yard.row(ids["after:x"])["place"] == "finished_jobs"


def test_savepoints_rollback_and_copy_are_the_jobs_own(yard: Yard) -> None:
    ids = run(yard, jobs.act, "savepoints:x", "rollback:x", "copy:x")
    assert_plain_ones_are_exact(yard, ids)
    found = written(yard)
    assert (found["savepoints:x"], found["inner x"], found["mine x"]) == (1, 0, 0)
    assert (found["rollback:x"], found["after x"]) == (0, 1)
    assert (found["copy:x"], found["copied x"]) == (1, 1)
    assert ran_again(yard) == set()


def test_a_session_rolls_back_what_its_job_has_written(yard: Yard) -> None:
    ids = run(yard, jobs.act_by_session, "undo:x", "nested:x", "pass:x")
    assert_plain_ones_are_exact(yard, ids)
    found = written(yard)
    assert (found["undo:x"], found["after x"], found["nested:x"], found["inner x"]) == (0, 1, 1, 0)
    assert found["pass:x"] == 0
    assert yard.place(ids["pass:x"]) == "dead_jobs"


@pytest.mark.parametrize("left", jobs.LEFT)
def test_sqlalchemys_connection_is_as_new_for_each_job(yard: Yard, left: str) -> None:
    ids = run(yard, jobs.act_by_session, f"leave:{left}")
    assert_plain_ones_are_exact(yard, ids)
    assert ran_again(yard) <= {f"leave:{left}"}
    assert yard.place(ids[f"leave:{left}"]) == "finished_jobs"
    assert written(yard)[f"leave:{left}"] == 1


def test_a_cursor_whose_commit_was_refused_writes_within_the_savepoint(yard: Yard) -> None:
    """As the first statement of a batch, it would otherwise commit on its own."""
    first = yard.pushed(jobs.act, "write:once")
    refused = yard.pushed(jobs.act, *(f"refused:{number}" for number in range(3)))
    with yard.working("--processes", "1", DRAIN_JOBS=jobs.MODULE, SHARE_FOR_SECONDS="3"):
        wait_for_the_end(yard, [*first, *refused])
    assert written(yard) == {"write:once": 1, **{f"copied {number}": 1 for number in range(3)}}


def test_settings_of_a_job_end_with_it(yard: Yard) -> None:
    actions = [*(f"set:{name}" for name in jobs.SETTINGS), "undo role:"]
    ids = run(yard, jobs.act, *actions)
    assert_plain_ones_are_exact(yard, ids)
    assert [runs(yard, action) for action in actions] == [[True]] * len(actions)
    assert {setting for (setting,) in query(yard.database_url, "SELECT setting FROM written")} == {
        "onpostgres"
    }


def test_the_default_role_of_a_session_returns_after_each_job(yard: Yard) -> None:
    role = f"default_{uuid4().hex}"
    query(yard.database_url, f"CREATE ROLE {role} SUPERUSER")
    ((database,),) = query(yard.database_url, "SELECT current_database()")
    try:
        query(yard.database_url, f"ALTER DATABASE {database} SET role = '{role}'")
        ids = run(yard, jobs.act, "set:role", "set:local")
        assert_plain_ones_are_exact(yard, ids)
        assert query(yard.database_url, "SELECT DISTINCT setting FROM written") == [(f"on{role}",)]
    finally:
        query(yard.database_url, f"ALTER DATABASE {database} RESET role")
        query(yard.database_url, f"REASSIGN OWNED BY {role} TO CURRENT_USER")
        query(yard.database_url, f"DROP OWNED BY {role}")
        query(yard.database_url, f"DROP ROLE {role}")


def test_results_and_staged_jobs_commit_with_the_batch(yard: Yard) -> None:
    ids = yard.pushed(jobs.answer, *range(40))
    staging = yard.pushed(jobs.act, *(f"stage:{number}" for number in range(20)))
    with yard.working("--processes", "1", "--prefetch", "300", DRAIN_JOBS=jobs.MODULE, SHARE_FOR_SECONDS="3"):
        yard.wait_for("finished_jobs", [*ids, *staging])
    results = [drain.result(connected(yard.database_url), job_id) for job_id in ids]
    assert results == [number if number % 2 else -number for number in range(40)]
    assert query(yard.database_url, "SELECT count(*) FROM staged_jobs") == [(20,)]


def test_a_stolen_claim_fails_the_batch_and_its_jobs_run_alone(yard: Yard) -> None:
    ids = run(yard, jobs.act, "write:victim+steal:write:victim")
    thief = ids.pop("write:victim")
    assert_plain_ones_are_exact(yard, ids)
    assert written(yard)["write:victim"] == 0
    assert yard.row(thief)["claimed_by"] == "thief"
    assert written(yard)["steal:write:victim"] == 1
    assert runs(yard, "write:victim") == runs(yard, "steal:write:victim") == [True, False]


def test_a_job_cancelled_after_its_block_writes_nothing(yard: Yard) -> None:
    ids = run(yard, jobs.act, "write:victim+cancel:write:victim")
    victim = ids.pop("write:victim")
    assert_plain_ones_are_exact(yard, ids)
    assert written(yard)["write:victim"] == 0
    assert yard.place(victim) == "dead_jobs"
    assert yard.row(victim)["reason"] == "cancelled"


def test_a_deferred_constraint_fails_only_its_job(yard: Yard) -> None:
    ids = run(yard, jobs.act, "twice:x")
    assert_plain_ones_are_exact(yard, ids)
    assert runs(yard, "twice:x") == [True, False, False]
    assert yard.row(ids["twice:x"])["place"] == "dead_jobs"
    assert query(yard.database_url, "SELECT count(*) FROM kept") == [(0,)]


@pytest.mark.parametrize("action", ["deadlock:x", "deadlock:wrapped", "deadlock:dead", "cursor:1+cursor:2"])
def test_an_error_of_the_database_may_be_the_fault_of_other_jobs(yard: Yard, action: str) -> None:
    """Such a run is not a failed attempt, and the other jobs keep their runs."""
    ids = run(yard, jobs.act, action)
    last = action.rsplit("+", maxsplit=1)[-1]
    assert_plain_ones_are_exact(yard, ids)
    assert runs(yard, last) == [True, False]
    assert ran_again(yard) == {last}
    row = yard.row(ids[last])
    assert (row["place"], row["attempts"], row["last_error"]) == ("finished_jobs", 1, None)


def test_a_job_that_waits_elsewhere_for_its_own_batch_is_freed(yard: Yard) -> None:
    ids = run(yard, jobs.act, "lock:x+wait:x")
    assert_plain_ones_are_exact(yard, ids)
    assert runs(yard, "wait:x") == [True, False]
    assert yard.all_are("finished_jobs", list(ids.values()))


def test_a_job_that_runs_out_of_time_ends_alone(yard: Yard) -> None:
    ids = run(yard, jobs.act, "hang:x")
    assert_plain_ones_are_exact(yard, ids)
    assert runs(yard, "hang:x") == [True, False]
    row = yard.row(ids["hang:x"])
    assert (row["place"], row["attempts"]) == ("finished_jobs", 2)
    assert "JobTimeoutError" in str(row["last_error"])


def test_an_abandoned_block_is_undone(yard: Yard) -> None:
    ids = run(yard, jobs.act, "abandon:x")
    assert_plain_ones_are_exact(yard, ids)
    assert written(yard)["abandon:x"] == 0
    assert yard.place(ids["abandon:x"]) == "dead_jobs"


@pytest.mark.parametrize("action", ["step:x", "sleep:x", "async:x"])
def test_what_needs_another_transaction_is_refused_alone_too(yard: Yard, action: str) -> None:
    ids = run(yard, jobs.act, action)
    assert_plain_ones_are_exact(yard, ids)
    row = yard.row(ids[action])
    assert row["place"] == "dead_jobs"
    assert 'has commit="shared"' in str(row["last_error"])


def test_a_killed_process_costs_the_others_nothing(yard: Yard) -> None:
    ids = run(yard, jobs.act, "kill:x")
    assert_plain_ones_are_exact(yard, ids)
    assert runs(yard, "kill:x") == [True, False]
    assert len(ran_again(yard)) > 1
    attempts = {label: yard.row(job_id)["attempts"] for label, job_id in ids.items()}
    assert attempts.pop("kill:x") == 2
    assert set(attempts.values()) == {1}


@pytest.mark.parametrize("point", ["WRITTEN", "FINISHED_AND_COMMITTED", "RAN"])
def test_jobs_are_exact_if_the_process_is_killed_at(yard: Yard, point: str, tmp_path: Path) -> None:
    ids = run(yard, jobs.act, "write:x", KILL_AT=point, KILLED=str(tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert_plain_ones_are_exact(yard, ids, charged=1)
    assert bool(ran_again(yard)) is (point == "WRITTEN")


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_commit_in_doubt_is_looked_up(yard: Yard, lost: str) -> None:
    interrupted: list[Any] = []
    ids = run(yard, jobs.act, "write:x", interrupted=interrupted, LOSE_ANSWER=lost)
    assert_plain_ones_are_exact(yard, ids)
    assert bool(ran_again(yard)) is bool(interrupted) is (lost == "before")


def test_long_jobs_run_in_their_own_transactions(yard: Yard) -> None:
    ids = yard.pushed(jobs.act, *(f"slow:{number}" for number in range(10)))
    with yard.working("--processes", "1", "--prefetch", "300", DRAIN_JOBS=jobs.MODULE):
        yard.wait_for("finished_jobs", ids)
    assert sizes(yard) == [1] * 10


def test_a_batch_ends_after_20_ms(yard: Yard) -> None:
    """Jobs of 5 ms each."""
    ids = yard.pushed(jobs.act, "write:x", *(f"nap:{number}" for number in range(40)))
    with yard.working("--processes", "1", "--prefetch", "300", DRAIN_JOBS=jobs.MODULE, LONG_SECONDS="3"):
        yard.wait_for("finished_jobs", ids)
    assert 1 < max(sizes(yard)) <= 4


def test_at_another_isolation_level_jobs_do_not_share(yard: Yard) -> None:
    query(
        yard.database_url,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', "
        "current_database()); END $$",
    )
    ids = run(yard, jobs.act, "write:x")
    assert_plain_ones_are_exact(yard, ids)
    assert set(sizes(yard)) == {1}


def test_job_refuses_what_cannot_share() -> None:
    async def wait() -> None: ...

    with pytest.raises(ValueError, match="`async def`"):
        job(name="tests.async_shared", commit="shared")(wait)
    with pytest.raises(ValueError, match="isolated"):
        job(name="tests.isolated_shared", commit="shared", isolated=True)
    with pytest.raises(ValueError, match='"shared"'):
        job(name="tests.other", commit="other")  # type: ignore[call-overload]

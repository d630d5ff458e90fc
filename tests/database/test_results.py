"""Results of jobs: kept in the very commit that finishes the job, and looked up by its id."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import drain
from drain import current_job, psycopg_transaction, transaction
from drain.__main__ import main
from drain.tables import finishes, staged
from drain.tables.fences import Fence
from drain.workers.context.written_result import MOST_BYTES
from tests.helpers import BOUNDS, query
from tests.inprocess_worker import Workshop, leave


def kept(shop: Workshop, function: Callable[..., Any], **options: Any) -> int:
    return shop.delivered(function, result="keep", **options)


def connect(shop: Workshop) -> psycopg.Connection[Any]:
    return psycopg.connect(shop.database_url, autocommit=True, options=BOUNDS)


def result_of(shop: Workshop, job_id: int) -> Any:
    with connect(shop) as connection:
        return drain.result(connection, job_id)


def state_of(shop: Workshop, job_id: int) -> drain.JobState:
    with connect(shop) as connection:
        found = drain.state(connection, job_id)
    assert found is not None
    return found


VALUES = [
    None,
    0,
    1.5,
    "tea",
    "Grüße \\u0000 \u2615",
    [],
    [1, [2, {"a": None}]],
    {"total": 12, "lines": ["x"]},
    True,
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_returned_value_comes_back(shop: Workshop, value: Any) -> None:
    job_id = kept(shop, lambda: value)
    assert shop.work(job_id) == "finished"
    assert result_of(shop, job_id) == value
    assert state_of(shop, job_id).has_result


def test_an_async_job_keeps_its_result(shop: Workshop) -> None:
    async def act() -> dict[str, int]:
        return {"total": 3}

    job_id = kept(shop, act)
    assert shop.work(job_id) == "finished"
    assert result_of(shop, job_id) == {"total": 3}


def test_without_the_option_no_result_is_kept_and_reading_it_fails(shop: Workshop) -> None:
    job_id = shop.delivered(lambda: 42)
    assert shop.work(job_id) == "finished"
    assert query(shop.database_url, "SELECT result IS NULL FROM finished_jobs") == [(True,)]
    with pytest.raises(drain.NoResultError, match="register it with @job"):
        result_of(shop, job_id)


@pytest.mark.parametrize("block", [transaction, psycopg_transaction])
@pytest.mark.parametrize("commit", ["flushed", "grouped"])
def test_a_result_set_in_the_transaction_is_committed_with_it(
    shop: Workshop, block: Any, commit: str
) -> None:
    def act() -> str:
        with block() as session:
            leave(session, "written")
            current_job().set_result({"first": 1})
            current_job().set_result({"order": 7})
        ((found,),) = query(shop.database_url, "SELECT result FROM finished_jobs")
        seen.append(found)
        return "too late"

    seen: list[Any] = []
    job_id = kept(shop, act, commit=commit)
    assert shop.work(job_id) == "finished"
    assert seen == [{"order": 7}]
    assert result_of(shop, job_id) == {"order": 7}


def test_a_result_that_was_set_in_an_attempt_that_failed_is_gone(shop: Workshop) -> None:
    def act() -> str:
        if current_job().attempt == 1:
            with transaction():
                current_job().set_result("first")
                raise ValueError("no")
        return "second"

    job_id = kept(shop, act)
    assert shop.work_to_the_end(job_id) == ["retrying", "finished"]
    assert result_of(shop, job_id) == "second"


@pytest.mark.parametrize("block", [transaction, psycopg_transaction])
@pytest.mark.parametrize("options", [{}, {"commit": "grouped"}], ids=str)
def test_a_value_returned_after_the_transaction_is_stored(
    shop: Workshop, block: Any, options: dict[str, Any]
) -> None:
    def act() -> dict[str, int]:
        with block() as session:
            leave(session, "written")
        return {"total": 3}

    job_id = kept(shop, act, **options)
    assert shop.work(job_id) == "finished"
    assert result_of(shop, job_id) == {"total": 3}
    assert shop.effects() == ["written"]


@pytest.mark.parametrize("other", [{"fencing_token": 2}, {"worker": "another"}], ids=str)
def test_only_the_claim_that_finished_a_job_adds_its_result(shop: Workshop, other: dict[str, Any]) -> None:
    job_id = kept(shop, lambda: "own")
    assert shop.work(job_id) == "finished"
    ((token, worker),) = query(shop.database_url, "SELECT fencing_token, finished_by FROM finished_jobs")
    own = Fence(job_id, token, None, worker)

    with connect(shop) as connection:
        assert not finishes.add_result(connection, own._replace(**other), '"of another"')
        assert result_of(shop, job_id) == "own"
        assert finishes.add_result(connection, own, '"added"')
    assert result_of(shop, job_id) == "added"


def test_a_job_that_returns_nothing_after_its_transaction_keeps_nothing(shop: Workshop) -> None:
    def act() -> None:
        with transaction():
            pass

    job_id = kept(shop, act)
    assert shop.work(job_id) == "finished"
    with pytest.raises(drain.NoResultError):
        result_of(shop, job_id)


def test_a_result_that_cannot_be_stored_after_the_transaction_is_reported(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> object:
        with transaction():
            pass
        return object()

    assert shop.work(kept(shop, act)) == "finished"
    assert "its code after the transaction failed" in caplog.text
    assert "cannot be written as JSON" in caplog.text


def test_an_unencodable_result_after_the_transaction_is_reported(
    latin1: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> str:
        with transaction():
            pass
        return "\u2615"

    assert latin1.work(kept(latin1, act)) == "finished"
    assert "the encoding of the database lacks" in caplog.text


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(600):
        value = [value]
    return value


UNFIT: dict[str, tuple[Callable[[], Any], str]] = {
    "too large": (lambda: "x" * (MOST_BYTES - 1), "65537 bytes of JSON, and 65536 at most are kept"),
    "too large in UTF-8": (lambda: "ü" * (MOST_BYTES // 2), "65538 bytes of JSON"),
    "no JSON": (object, "cannot be written as JSON"),
    "no number": (lambda: float("nan"), "cannot be written as JSON"),
    "a NUL": (lambda: "\0", "NUL"),
    "half a character": (lambda: "\ud800", "cannot be written as JSON"),
    "deep": (deep, "more than 500 deep"),
}


@pytest.mark.parametrize("kind", list(UNFIT))
def test_a_result_that_cannot_be_stored_kills_the_job_at_once(shop: Workshop, kind: str) -> None:
    make, words = UNFIT[kind]
    job_id = kept(shop, make)
    assert shop.work(job_id) == "dead"
    row = shop.row(job_id)
    assert words in row["explanation"]
    assert "\n" not in row["explanation"]
    assert row["last_error"]["type"] == "drain.workers.errors.UnfitResultError"
    with pytest.raises(drain.DeadJobError, match=r"is dead: drain\.workers\.errors\.UnfitResultError"):
        result_of(shop, job_id)


def test_the_largest_result_is_kept(shop: Workshop) -> None:
    job_id = kept(shop, lambda: "x" * (MOST_BYTES - 2))
    assert shop.work(job_id) == "finished"
    assert len(result_of(shop, job_id)) == MOST_BYTES - 2


def test_a_result_that_cannot_be_kept_rolls_the_transaction_back(shop: Workshop) -> None:
    def act() -> None:
        with transaction() as session:
            leave(session, "rolled back")
            current_job().set_result(object())

    job_id = kept(shop, act)
    assert shop.work(job_id) == "dead"
    assert shop.effects() == []


def test_a_job_that_keeps_no_result_may_not_set_one(shop: Workshop) -> None:
    job_id = shop.delivered(lambda: current_job().set_result(1))
    assert shop.work(job_id) == "dead"
    assert 'register it with @job(result="keep")' in shop.row(job_id)["explanation"]


def test_an_unencodable_result_kills_the_job(latin1: Workshop) -> None:
    job_id = kept(latin1, lambda: "\u2615")
    assert latin1.work(job_id) == "dead"
    assert "characters that the encoding of the database lacks" in latin1.row(job_id)["explanation"]

    job_id = kept(latin1, lambda: "ü", name="tests.other")
    assert latin1.work(job_id) == "finished"
    assert result_of(latin1, job_id) == "ü"


def test_a_worker_that_lost_its_claim_stores_no_result(shop: Workshop) -> None:
    def act() -> str:
        claim = shop.take_over(job_id)
        assert shop.finish(claim)
        return "stale"

    job_id = kept(shop, act, lease_seconds=60)
    assert shop.work(job_id) == "stale"
    assert query(shop.database_url, "SELECT result FROM finished_jobs") == [(None,)]


@pytest.mark.parametrize("block", [transaction, psycopg_transaction], ids=["session", "psycopg"])
def test_a_transaction_of_a_worker_that_lost_its_claim_is_rolled_back_with_its_result(
    shop: Workshop, block: Any
) -> None:
    def act() -> None:
        with block() as session:
            leave(session, "stale")
            current_job().set_result("stale")
            shop.take_over(job_id)

    job_id = kept(shop, act, lease_seconds=60)
    assert shop.work(job_id) == "stale"
    assert (shop.whereabouts(job_id), shop.effects()) == ("inflight_jobs", [])


def test_every_state_of_a_job_is_reported(shop: Workshop) -> None:
    def act(what: str) -> str:
        running.append(state_of(shop, current_job().id))
        if what == "defer":
            raise drain.Defer(60)
        if what == "fail":
            raise ValueError("no\nsecond line")
        return what

    running: list[drain.JobState] = []
    registered = drain.job(name="tests.act", result="keep", max_attempts=2)(act)
    with connect(shop) as connection:
        assert drain.state(connection, 10**6) is None
        job_id = registered.stage(connection, "ok")
        assert state_of(shop, job_id).state == "waiting"
        later = registered.options(run_in=60).stage(connection, "ok")
        assert state_of(shop, later).state == "scheduled"
        drain.cancel(connection, later)
        cancelled = state_of(shop, later)
        assert cancelled.state == "cancelled"
        assert cancelled.error
        with pytest.raises(drain.DeadJobError, match="is cancelled"):
            drain.result(connection, later)
        with pytest.raises(drain.NotFinishedError, match=r"has not finished: waiting$"):
            drain.result(connection, job_id)
        staged.move(connection, [job_id], last_delivery=job_id)
    assert state_of(shop, job_id).state == "waiting"
    assert shop.work(job_id) == "finished"
    found = state_of(shop, job_id)
    assert (found.state, found.attempts, found.error, found.has_result) == ("finished", 1, None, True)
    assert found.started_at is not None
    assert found.finished_at is not None
    assert found.staged_at <= found.started_at <= found.finished_at
    assert (running[0].state, running[0].finished_at) == ("running", None)

    job_id = shop.deliver(registered, "defer")
    assert shop.work(job_id) == "deferred"
    assert state_of(shop, job_id).state == "scheduled"

    job_id = shop.deliver(registered, "fail")
    assert shop.work(job_id) == "retrying"
    assert (state_of(shop, job_id).state, state_of(shop, job_id).error) == (
        "retrying",
        "ValueError: no",
    )
    assert shop.work(job_id) == "dead"
    assert state_of(shop, job_id).state == "dead"
    with pytest.raises(drain.DeadJobError, match="ValueError: no"):
        result_of(shop, job_id)


def test_expired_and_superseded_jobs_have_no_result(shop: Workshop) -> None:
    job_id = kept(shop, lambda: 1)
    shop.set(job_id, "expires_at = now() - interval '1 s' WHERE")
    assert shop.work(job_id) == "dead"
    assert state_of(shop, job_id).state == "expired"

    job_id = kept(shop, lambda: 1)
    assert shop.work(job_id) == "finished"
    query(shop.database_url, "UPDATE finished_jobs SET superseded_by = 77, result = NULL, attempts = 0")
    found = state_of(shop, job_id)
    assert (found.state, found.started_at) == ("superseded", None)
    with pytest.raises(drain.NoResultError, match="gave way to job 77; ask for the result of that one"):
        result_of(shop, job_id)


@pytest.mark.parametrize("wrong", [0, -1, "1", True, None, 2**63, 1.5, [1], []])
def test_an_invalid_id_is_refused(shop: Workshop, wrong: Any) -> None:
    with connect(shop) as connection, pytest.raises(drain.SelectionError):
        drain.state(connection, wrong)


def test_an_unknown_id_raises_an_error(shop: Workshop) -> None:
    with pytest.raises(drain.UnknownJobError, match="no job has the id 99"):
        result_of(shop, 99)


def test_results_can_be_read_through_a_session(shop: Workshop) -> None:
    job_id = kept(shop, lambda: {"a": 1})
    assert shop.work(job_id) == "finished"
    engine = create_engine(shop.database_url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        assert drain.result(session, job_id) == {"a": 1}
        found = drain.state(session, job_id)
        assert found is not None
        assert found.state == "finished"
    engine.dispose()


def test_show_truncates_a_result_but_json_has_all_of_it(shop: Workshop) -> None:
    job_id = kept(shop, lambda: {"text": "x" * 2000})
    assert shop.work(job_id) == "finished"
    words = ["show", str(job_id), "--database-url", shop.database_url]
    shown = CliRunner().invoke(main, words).output
    assert "(2012 characters; --json shows all)" in " ".join(shown.split())
    assert len(shown) < 1500
    whole = CliRunner().invoke(main, [*words, "--json"]).output
    assert json.loads(whole)["result"] == {"text": "x" * 2000}

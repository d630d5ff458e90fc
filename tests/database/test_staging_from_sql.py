"""`drain_stage()`: jobs that are staged in SQL, by programs in any language."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import drain
from drain.jobs.stage_options import names
from tests.helpers import query
from tests.inprocess_worker import Workshop

OPTIONS = [
    "version",
    "queue",
    "priority",
    "run_at",
    "run_in",
    "expires_at",
    "tag",
    "max_attempts",
    "timeout_seconds",
]
OPTIONS += ["context", "key", "unique_key", "keep", "quiet", "idempotency_key", "idempotency_period"]
OPTIONS += ["after", "on_failure", "flow", "node", "on"]


def stage(url: str, name: str | None = "m.f", args: Any = None, **options: Any) -> int:
    words = (name, None if args is None else json.dumps(args), json.dumps(options))
    ((job_id,),) = query(url, "SELECT drain_stage(%s, %s, %s)", *words)
    return int(job_id)


def row(url: str, job_id: int) -> dict[str, Any]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        found = connection.execute("SELECT * FROM staged_jobs WHERE id = %s", [job_id]).fetchone()
    assert found is not None
    return found


def test_the_options_match_those_of_stage() -> None:
    assert set(OPTIONS) - {"version", "on"} == set(names())


def test_a_name_alone_is_enough(database_url: str) -> None:
    ((job_id,),) = query(database_url, "SELECT drain_stage('m.f')")
    found = row(database_url, job_id)
    with psycopg.connect(database_url, autocommit=True) as connection:
        same = row(database_url, drain.stage(connection, "m.f"))
    varying = {"id", "salt", "scheduled_at", "staged_at"}
    assert {name: found[name] for name in found.keys() - varying} == {
        name: same[name] for name in same.keys() - varying
    }


def test_a_job_that_is_staged_in_sql_runs(shop: Workshop) -> None:
    called: list[Any] = []
    drain.job(name="tests.act")(lambda *args, **kwargs: called.append((args, kwargs)))
    for args in ([42, "a", None], {"order": 42, "note": None}):
        job_id = stage(shop.database_url, "tests.act", args)
        with psycopg.connect(shop.database_url, autocommit=True) as connection:
            drain.tables.staged.move(connection, [job_id], last_delivery=job_id)
        assert shop.work(job_id) == "finished"
    assert called == [((42, "a", None), {}), ((), {"order": 42, "note": None})]


def test_all_options_are_stored(database_url: str) -> None:
    options: dict[str, Any] = {
        "queue": "mail",
        "priority": -5,
        "run_at": "2030-01-31T08:30:00+02:00",
        "expires_at": "2030-02-01 00:00:00.5Z",
        "tag": "shop.order",
        "max_attempts": 3,
        "timeout_seconds": 60,
        "context": {"trace": "ab", "none": None},
        "key": 42,
        "unique_key": "order:42",
        "keep": "last",
        "quiet": 30.5,
    }
    found = row(database_url, stage(database_url, args=[1], version=1, **options))
    at = datetime(2030, 1, 31, 6, 30, tzinfo=UTC)
    wanted = options | {
        "scheduled_at": at + timedelta(seconds=30.5),
        "expires_at": datetime(2030, 2, 1, 0, 0, 0, 500_000, tzinfo=UTC),
        "key": "42",
        "quiet_seconds": 30.5,
        "job_args": [1],
    }
    del wanted["run_at"], wanted["quiet"]
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("more", [{}, {"idempotency_key": "a"}])
def test_a_whole_number_may_have_a_point(database_url: str, more: dict[str, Any]) -> None:
    # As encoders of JSON write a float.
    found = row(
        database_url, stage(database_url, priority=5.0, max_attempts=3.0, key=7.0, unique_key=70.0, **more)
    )
    assert (found["priority"], found["max_attempts"], found["key"], found["unique_key"]) == (5, 3, "7", "70")


def test_a_job_runs_after_a_time(database_url: str) -> None:
    found = row(database_url, stage(database_url, run_in=90))
    assert found["scheduled_at"] - found["staged_at"] == timedelta(seconds=90)


def test_an_option_that_is_null_is_left_out(database_url: str) -> None:
    found = row(database_url, stage(database_url, "m.f", None, **dict.fromkeys(OPTIONS)))
    assert (found["queue"], found["context"], found["max_attempts"]) == ("default", None, None)


def test_an_idempotency_key_stages_once(database_url: str) -> None:
    first = stage(database_url, args=[1], idempotency_key="a", idempotency_period=60, queue="mail")
    assert stage(database_url, args=[1], idempotency_key="a") == first
    assert row(database_url, first)["queue"] == "mail"
    ((left,),) = query(database_url, "SELECT extract(epoch FROM expires_at - now()) FROM idempotency_keys")
    assert 0 < left <= 60
    with pytest.raises(
        psycopg.errors.UniqueViolation, match=f"'a' is that of job {first}, which has another"
    ):
        stage(database_url, args=[2], idempotency_key="a")
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert drain.stage(connection, "m.f", [1], idempotency_key="a") == first


REFUSED: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "unknown": (None, {"que": "mail"}, "has no option 'que'", "There are: after, context, "),
    "text": (None, {"queue": 7}, "the option queue of drain_stage() is a text, not 7", "give a JSON string"),
    "integer": (
        None,
        {"priority": "7"},
        'priority of drain_stage() is a whole number, not "7"',
        "JSON number",
    ),
    "fraction": (None, {"priority": 1.5}, "is a whole number, not 1.5", "JSON number"),
    "too large": (None, {"max_attempts": 2**31}, "is a whole number, not 2147483648", "2147483647"),
    "no zone": (None, {"run_at": "2030-01-01T00:00:00"}, "is a time, not", "2030-01-31T08:30:00Z"),
    "no month": (None, {"run_at": "2030-13-01T00:00:00Z"}, "is a time, not", "2030-01-31T08:30:00Z"),
    "no day": (None, {"expires_at": "2030-02-30T00:00:00Z"}, "is a time, not", "2030-01-31T08:30:00Z"),
    "far zone": (None, {"run_at": "2030-01-01T00:00:00+99"}, "is a time, not", "with a time zone"),
    "infinity": (None, {"run_at": "infinity"}, "is a time, not", "with a time zone"),
    "seconds": (None, {"run_in": 0}, "is a number of seconds, not 0", "above 0"),
    "object": (None, {"context": []}, "is an object, not []", "JSON object"),
    "version": (None, {"version": 2}, "is the version of its contract, 1, not 2", "or give 1"),
    "both": (None, {"run_at": "2030-01-01T00:00:00Z", "run_in": 1}, "exclude each other", "one of them"),
    "period": (None, {"idempotency_period": 1}, "needs an idempotency_key", "Give both"),
    "arguments": ("x", {}, "a JSON array or object, not of the type string", "such as [42]"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_bad_input_is_one_clear_line_with_a_hint(database_url: str, kind: str) -> None:
    args, options, words, hint = REFUSED[kind]
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        stage(database_url, args=args, **options)
    assert words in str(caught.value.diag.message_primary)
    assert hint in str(caught.value.diag.message_hint)
    assert "\n" not in str(caught.value.diag.message_primary)
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(0,)]


def test_options_that_are_not_an_object_are_refused(database_url: str) -> None:
    with pytest.raises(
        psycopg.errors.InvalidParameterValue,
        match="the options of a job are a JSON object, not of the type array",
    ):
        query(database_url, "SELECT drain_stage('m.f', '[]', '[]')")


@pytest.mark.parametrize(
    ("options", "constraint"),
    [
        ({"queue": "a b"}, "queue_must_be_a_name_that_rq_can_carry"),
        ({"keep": "middle", "unique_key": "a"}, "keep_must_be_first_or_last"),
        ({"quiet": 1}, "keep_and_quiet_seconds_need_a_unique_key"),
        ({"key": ""}, "key_must_have_1_to_255_characters"),
        ({"timeout_seconds": 0}, "timeout_seconds_must_be_positive"),
    ],
)
def test_violations_name_the_failed_check(
    database_url: str, options: dict[str, Any], constraint: str
) -> None:
    for more in ({}, {"idempotency_key": "a"}):
        with pytest.raises(psycopg.errors.CheckViolation, match=constraint):
            stage(database_url, **options | more)


def test_a_missing_name_is_refused(database_url: str) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation, match="job_name"):
        stage(database_url, None)


def test_a_transaction_that_rolls_back_has_staged_nothing(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT drain_stage('m.f')")
        connection.rollback()
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(0,)]


def test_the_tables_are_found_under_any_search_path(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET search_path = pg_catalog")
        connection.execute("SELECT public.drain_stage('m.f', '[1]', '{\"idempotency_key\": \"a\"}')")
        connection.execute("SELECT public.drain_stage('m.f', '[1]', '{\"queue\": \"mail\"}')")
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(2,)]

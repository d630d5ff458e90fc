"""Jobs that wait for others: `after` and `on_failure` in every way of staging, and in SQL."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import drain
from drain import After, StageError
from drain.jobs import registry
from drain.tables.columns import BLOCKED_UNTIL
from tests.async_connections import OPENERS, Opener, for_sqlalchemy
from tests.helpers import query
from tests.hostility import Place

AT = datetime(2030, 1, 2, 3, tzinfo=UTC)
NAME = "dependent.pack"


@pytest.fixture
def shop(database_url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(database_url, autocommit=True)


@pytest.fixture
def pack(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A registered job that waits for the ids in its argument."""
    monkeypatch.setattr(registry, "_jobs", dict(registry._jobs))
    return drain.job(name=NAME, after=lambda ids, **_: ids)(lambda ids, **options: None)


def edges(url: str) -> list[tuple[Any, ...]]:
    columns = "child_id, parent_id, awaited_id, on_failure, state"
    return query(url, f"SELECT {columns} FROM job_edges ORDER BY child_id, parent_id")


def times(url: str, job_id: int) -> tuple[datetime, datetime | None]:
    ((scheduled_at, starts_at),) = query(
        url, "SELECT scheduled_at, starts_at FROM staged_jobs WHERE id = %s", job_id
    )
    return scheduled_at, starts_at


def waits(child: int, parent: int, on_failure: str = "cancel") -> tuple[Any, ...]:
    return child, parent, parent, on_failure, "waiting"


def test_a_job_waits_for_one_staged_before(database_url: str, shop: psycopg.Connection[Any]) -> None:
    parent = drain.stage(shop, "m.f")
    child = drain.stage(shop, "m.f", [1], {"a": None}, after=parent, priority=3)
    assert edges(database_url) == [waits(child, parent)]
    assert times(database_url, child) == (BLOCKED_UNTIL, None)
    rows = query(database_url, "SELECT job_args, job_kwargs, priority FROM staged_jobs WHERE id = %s", child)
    assert rows == [([1], {"a": None}, 3)]
    state = drain.state(shop, child)
    assert state is not None
    assert state.state == "blocked"


def test_predecessors_may_differ_in_what_their_failure_means(
    database_url: str, shop: psycopg.Connection[Any]
) -> None:
    a, b, c = drain.stage_many(shop, "m.f", [(), (), ()])
    given: list[int | After] = [a, After(b, "hold"), c, c]
    child = drain.stage(shop, "m.f", after=iter(given), on_failure="run")
    assert edges(database_url) == [waits(child, a, "run"), waits(child, b, "hold"), waits(child, c, "run")]


@pytest.mark.parametrize("key", [None, "order 42"])
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"run_at": AT}, AT),
        ({"run_at": AT, "unique_key": "u", "quiet": timedelta(seconds=5)}, AT + timedelta(seconds=5)),
    ],
)
def test_the_earliest_start_is_kept(
    database_url: str, shop: psycopg.Connection[Any], key: str | None, options: Any, wanted: datetime
) -> None:
    parent = drain.stage(shop, "m.f")
    child = drain.stage(shop, "m.f", after=parent, idempotency_key=key, **options)
    assert times(database_url, child) == (BLOCKED_UNTIL, wanted)


def test_an_earliest_start_from_now_is_kept(database_url: str, shop: psycopg.Connection[Any]) -> None:
    parent = drain.stage(shop, "m.f")
    delayed = drain.stage(shop, "m.f", after=parent, run_in=60)
    quiet = drain.stage(shop, "m.f", after=parent, unique_key="u", quiet=timedelta(seconds=60))
    for child in (delayed, quiet):
        scheduled_at, starts_at = times(database_url, child)
        assert scheduled_at == BLOCKED_UNTIL
        assert starts_at is not None
        assert timedelta(seconds=30) < starts_at - datetime.now(UTC) < timedelta(seconds=61)


@pytest.mark.parametrize("given", [None, (), [], iter(())], ids=["None", "tuple", "list", "iterator"])
def test_without_predecessors_a_job_is_staged_as_ever(
    database_url: str, shop: psycopg.Connection[Any], given: Any
) -> None:
    job_id = drain.stage(shop, "m.f", after=given)
    (other,) = drain.stage_many(shop, "m.f", [()], after=[])
    assert edges(database_url) == []
    for each in (job_id, other):
        assert times(database_url, each)[0] <= datetime.now(UTC)


def test_each_of_many_jobs_waits_for_all(database_url: str, shop: psycopg.Connection[Any]) -> None:
    a, b = drain.stage_many(shop, "m.f", [(), ()])
    ids = drain.stage_many(shop, "m.f", [(n,) for n in range(3)], after=[a, b], on_failure="hold")
    assert edges(database_url) == [waits(child, parent, "hold") for child in ids for parent in (a, b)]
    rows = query(database_url, "SELECT id, job_args FROM staged_jobs WHERE id > %s ORDER BY id", b)
    assert rows == [(job_id, [n]) for n, job_id in enumerate(ids)]


def test_a_function_of_the_arguments_chooses(
    database_url: str, shop: psycopg.Connection[Any], pack: Any
) -> None:
    a, b = drain.stage_many(shop, "m.f", [(), ()])
    one = pack.stage(shop, [a, b])
    ids = pack.options(on_failure="run", unique_key=str).stage_many(shop, [(a,), (None,), (b,), ([],)])
    given = pack.options(after=b).stage(shop, [a])
    none = pack.options(after=()).stage(shop, [a])
    assert edges(database_url) == [
        *(waits(one, a), waits(one, b), waits(ids[0], a, "run"), waits(ids[2], b, "run"), waits(given, b))
    ]
    blocked = query(database_url, "SELECT id FROM staged_jobs WHERE scheduled_at = '9999-12-29Z' ORDER BY id")
    assert blocked == [(one,), (ids[0],), (ids[2],), (given,)]
    assert none > given
    keys = query(database_url, "SELECT unique_key FROM staged_jobs WHERE id = ANY (%s) ORDER BY id", ids)
    assert [key for (key,) in keys][:2] == [str(a), "None"]


def test_a_function_may_be_given_per_call(database_url: str, shop: psycopg.Connection[Any]) -> None:
    parent = drain.stage(shop, "m.f")
    ids = drain.stage_many(
        shop, "m.f", [{"n": 0}, {"n": parent}], after=lambda n: After(n, "hold") if n else None
    )
    assert edges(database_url) == [waits(ids[1], parent, "hold")]


def test_many_are_staged_in_order(database_url: str, shop: psycopg.Connection[Any]) -> None:
    parent = drain.stage(shop, "m.f")
    ids = drain.stage_many(shop, "m.f", ((n,) for n in range(12_000)), after=parent)
    rows = query(
        database_url, "SELECT id, (job_args ->> 0)::int FROM staged_jobs WHERE id > %s ORDER BY id", parent
    )
    assert rows == [(job_id, n) for n, job_id in enumerate(ids)]
    assert query(database_url, "SELECT count(*) FROM job_edges") == [(12_000,)]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"after": "41"}, "whole numbers, not a str"),
    "bytes": ({"after": b"41"}, "whole numbers, not a bytes"),
    "text in a list": ({"after": ["41"]}, "whole numbers, not a str"),
    "pair": ({"after": [[41, "run"]]}, "whole numbers, not a list"),
    "mapping": ({"after": {41: "run"}}, "whole numbers, not a dict"),
    "bool": ({"after": True}, "whole numbers, not a bool"),
    "fraction": ({"after": 1.0}, "whole numbers, not a float"),
    "zero": ({"after": [0]}, "from 1 to 9223372036854775807, not 0"),
    "negative": ({"after": -3}, "from 1 to 9223372036854775807, not -3"),
    "huge": ({"after": 10**400}, "from 1 to 9223372036854775807, not 1000"),
    "choice": ({"after": 1, "on_failure": "retry"}, "'cancel', 'run', 'hold' or 'only', not 'retry'"),
    "choice of no text": (
        {"after": 1, "on_failure": ["run"]},
        "'cancel', 'run', 'hold' or 'only', not ['run']",
    ),
    "choice alone": (
        {"on_failure": "run"},
        "on_failure needs jobs to wait for: give their ids as after=[...]",
    ),
    "twice": ({"after": [1, After(1, "run")]}, "after has job 1 twice, with different on_failure"),
    "error of a generator": (
        {"after": lambda: (1 / each for each in [0])},
        "the after cannot be computed from the arguments (ZeroDivisionError",
    ),
    "error": ({"after": lambda: 1 / 0}, "the after cannot be computed from the arguments (ZeroDivisionError"),
    "function's": ({"after": lambda: ["x"]}, "whole numbers, not a str"),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_bad_options_are_one_clear_line_and_send_nothing(
    database_url: str, shop: psycopg.Connection[Any], kind: str
) -> None:
    options, words = BAD[kind]
    for call in (
        lambda: drain.stage(shop, "m.f", **options),
        lambda: drain.stage(shop, "m.f", idempotency_key="a", **options),
        lambda: drain.stage_many(shop, "m.f", [()], **options),
    ):
        with pytest.raises(StageError) as caught:
            call()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert query(database_url, "SELECT FROM staged_jobs") == []


@pytest.mark.parametrize(
    ("job_id", "on_failure"), [(b"1", "run"), (0, "run"), (True, "run"), (1, "retry"), (1, None)]
)
def test_a_bad_predecessor_is_refused_when_it_is_made(job_id: Any, on_failure: Any) -> None:
    with pytest.raises(StageError):
        After(job_id, on_failure)


def test_a_job_function_is_not_taken_for_a_function_of_the_arguments(
    shop: psycopg.Connection[Any], pack: Any
) -> None:
    with pytest.raises(StageError, match="not a registered function: pass the id"):
        drain.stage(shop, "m.f", [[]], after=pack)
    with pytest.raises(ValueError, match="not a registered function"):
        drain.job(after=pack)


def test_a_registration_takes_a_function_and_no_cron_line(shop: psycopg.Connection[Any], pack: Any) -> None:
    with pytest.raises(ValueError, match="after must be a function of the job's arguments"):
        drain.job(after=[1])  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="a job with a cron line cannot wait for others"):
        drain.job(after=lambda: 1, cron="0 3 * * *")
    with pytest.raises(StageError, match=r"dependent\.pack is registered with after, and jobs of a schedule"):
        drain.schedule(shop, "nightly", pack, cron="0 3 * * *", args=[[]])


@pytest.mark.parametrize("key", [None, "a"])
def test_an_unknown_predecessor_leaves_nothing(
    database_url: str, shop: psycopg.Connection[Any], key: str | None
) -> None:
    # In autocommit mode: the statement takes the job along.
    with pytest.raises(
        psycopg.errors.ForeignKeyViolation, match="job 99, which a job should wait for, is unknown"
    ):
        drain.stage(shop, "m.f", after=99, idempotency_key=key)
    assert query(database_url, "SELECT FROM staged_jobs") == []
    assert query(database_url, "SELECT FROM idempotency_keys") == []


@pytest.mark.parametrize("ahead", [1, 2], ids=["itself", "a later job"])
def test_a_job_cannot_wait_for_itself_or_a_later_one(
    database_url: str, shop: psycopg.Connection[Any], ahead: int
) -> None:
    first = drain.stage(shop, "m.f")
    with pytest.raises(psycopg.errors.IntegrityError):
        drain.stage_many(shop, "m.f", [(), ()], after=first + ahead)
    assert edges(database_url) == []


def test_predecessors_may_be_in_any_table(database_url: str, shop: psycopg.Connection[Any]) -> None:
    ids = drain.stage_many(shop, "m.f", [()] * 3)
    drain.tables.staged.move(shop, ids[:1], last_delivery=1)
    drain.tables.staged.bury(shop, ids[1:2], "unreadable", "the reason")
    child = drain.stage(shop, "m.f", after=ids)
    assert edges(database_url) == [waits(child, parent) for parent in ids]


def test_a_rollback_takes_job_and_edges_along(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        parent = drain.stage(connection, "m.f")
        drain.stage(connection, "m.f", after=parent)
        connection.rollback()
    assert query(database_url, "SELECT FROM staged_jobs") == []
    assert edges(database_url) == []


def test_both_may_be_staged_in_one_transaction_of_sqlalchemy(database_url: str) -> None:
    engine = create_engine(for_sqlalchemy(database_url))
    with Session(engine) as session, session.begin():
        parent = drain.stage(session, "m.f")
        child = drain.stage(session, "m.f", after=[After(parent, "run")])
        (other,) = drain.stage_many(session, "m.f", [()], after=child)
    autocommitting = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommitting.connect() as connection:
        last = drain.stage(connection, "m.f", after=other)
    engine.dispose()
    assert edges(database_url) == [waits(child, parent, "run"), waits(other, child), waits(last, other)]


@pytest.mark.parametrize("opened", OPENERS, ids=lambda opener: opener.__name__)
def test_asynchronous_connections_stage_them_too(database_url: str, opened: Opener) -> None:
    async def stage() -> list[int]:
        async with opened(database_url) as connection:
            parent = await drain.astage(connection, "m.f")
            child = await drain.astage(connection, "m.f", after=parent, on_failure="hold")
            more = await drain.astage_many(connection, "m.f", [()], after=[child])
            once = await drain.astage(connection, "m.f", after=child, idempotency_key="a")
            return [parent, child, *more, once]

    parent, child, other, once = asyncio.run(stage())
    assert edges(database_url) == [waits(child, parent, "hold"), waits(other, child), waits(once, child)]


def test_an_idempotency_key_keeps_the_first_predecessors(
    database_url: str, shop: psycopg.Connection[Any]
) -> None:
    a, b = drain.stage_many(shop, "m.f", [(), ()])
    child = drain.stage(shop, "m.f", idempotency_key="k", after=[a, After(b, "run")])
    assert drain.stage(shop, "m.f", idempotency_key="k", after=b) == child
    assert drain.stage(shop, "m.f", idempotency_key="k") == child
    plain = drain.stage(shop, "m.f", idempotency_key="l")
    assert drain.stage(shop, "m.f", idempotency_key="l", after=a) == plain
    assert edges(database_url) == [waits(child, a), waits(child, b, "run")]
    with pytest.raises(StageError, match="idempotency_period needs an idempotency_key"):
        drain.stage(shop, "m.f", idempotency_period=timedelta(1), after=a)


def test_hooks_see_dependent_jobs(shop: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drain.hooks.stage_hooks", ())
    drain.on_stage(lambda name, args, kwargs, context: {"trace": "ab"})
    parent = drain.stage(shop, "m.f")
    child = drain.stage(shop, "m.f", after=parent)
    ((context,),) = shop.execute("SELECT context FROM staged_jobs WHERE id = %s", [child])
    assert context == {"trace": "ab"}


def test_an_application_needs_only_its_role(place: Place) -> None:
    with place.connected("application") as application:
        parent = drain.stage(application, "m.f")
        child = drain.stage(application, "m.f", after=parent)
        (other,) = drain.stage_many(application, "m.f", [()], after=child, run_in=60)
        once = drain.stage(application, "m.f", after=parent, idempotency_key="a")
        words = json.dumps({"after": [child], "idempotency_key": "b"})
        ((in_sql,),) = application.execute("SELECT drain_stage('m.f', '[]', %s)", [words])
    assert edges(place.url) == [
        *(waits(child, parent), waits(other, child), waits(once, parent), waits(in_sql, child))
    ]
    with place.connected("worker") as worker, pytest.raises(psycopg.errors.InsufficientPrivilege):
        worker.execute("SELECT drain_after(ARRAY[2], ARRAY[1], ARRAY['run'])")
    assert place.refuses("application", "SELECT FROM job_edges")
    assert place.refuses(
        "application", "INSERT INTO job_edges (child_id, parent_id, awaited_id) VALUES (2, 1, 1)"
    )


def test_only_a_jobs_own_transaction_can_let_it_wait(
    database_url: str, shop: psycopg.Connection[Any]
) -> None:
    a, plain = drain.stage_many(shop, "m.f", [(), ()])
    child = drain.stage(shop, "m.f", after=a)
    for each in (plain, child, 99):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"job {each} is not a blocked job"):
            shop.execute("SELECT drain_after(ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY['run'])", [each, a])


def in_sql(url: str, **options: Any) -> int:
    ((job_id,),) = query(url, "SELECT drain_stage('m.f', '[]', %s)", json.dumps(options))
    return int(job_id)


@pytest.mark.parametrize("more", [{}, {"idempotency_key": "a"}])
def test_plain_sql_stages_them(database_url: str, more: dict[str, Any]) -> None:
    a, b = in_sql(database_url), in_sql(database_url)
    child = in_sql(
        database_url, after=[a, [b, "run"], a], on_failure="hold", run_at="2030-01-02T03:00:00Z", **more
    )
    assert edges(database_url) == [waits(child, a, "hold"), waits(child, b, "run")]
    assert times(database_url, child) == (BLOCKED_UNTIL, AT)
    free = in_sql(database_url, after=[])
    assert times(database_url, free)[0] <= datetime.now(UTC)


BAD_IN_SQL: dict[str, tuple[dict[str, Any], str, str]] = {
    "number": (
        {"after": 1},
        "the option after of drain_stage() is a list of jobs, not 1",
        "give an array of ids",
    ),
    "text": ({"after": ["1"]}, "is a list of jobs", "such as [41, 42]"),
    "zero": ({"after": [0]}, "is a list of jobs", "such as [41, 42]"),
    "fraction": ({"after": [1.5]}, "is a list of jobs", "such as [41, 42]"),
    "null": ({"after": [None]}, "is a list of jobs", "such as [41, 42]"),
    "object": ({"after": [{"id": 1}]}, "is a list of jobs", "such as [41, 42]"),
    "triple": ({"after": [[1, "run", 2]]}, "is a list of jobs", 'such as [[41, "run"]]'),
    "choice of a pair": ({"after": [[1, "retry"]]}, "is a list of jobs", 'such as [[41, "run"]]'),
    "list of choices": ({"after": [[1, ["run"]]]}, "is a list of jobs", 'such as [[41, "run"]]'),
    "choice": ({"after": [1], "on_failure": "retry"}, "on_failure of drain_stage() is a choice", '"hold"'),
    "choice alone": ({"on_failure": "run"}, "the option on_failure needs jobs to wait for", '"after"'),
}


@pytest.mark.parametrize("kind", list(BAD_IN_SQL))
def test_bad_input_of_plain_sql_is_one_clear_line_with_a_hint(database_url: str, kind: str) -> None:
    options, words, hint = BAD_IN_SQL[kind]
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        in_sql(database_url, **options)
    assert words in str(caught.value.diag.message_primary)
    assert hint in str(caught.value.diag.message_hint)
    assert query(database_url, "SELECT FROM staged_jobs") == []


def test_plain_sql_refuses_unknown_predecessors(database_url: str) -> None:
    for more in ({}, {"idempotency_key": "a"}):
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match=r"job 99, .*, is unknown"):
            in_sql(database_url, after=[99], **more)
    assert query(database_url, "SELECT FROM staged_jobs") == []


def test_many_rows_of_plain_sql_wait(database_url: str, shop: psycopg.Connection[Any]) -> None:
    parent = drain.stage(shop, "m.f")
    statement = """
    WITH children AS (
        INSERT INTO staged_jobs (job_name, scheduled_at)
        SELECT 'm.f', '9999-12-29Z' FROM generate_series(1, 3) RETURNING id
    )
    SELECT drain_after(array_agg(id), array_agg(%s::bigint), array_agg('cancel'::text)) FROM children
    """
    shop.execute(statement, [parent])
    assert [edge[:2] for edge in edges(database_url)] == [(parent + n, parent) for n in (1, 2, 3)]


def test_the_tables_are_found_in_their_schema(
    database_url: str, monkeypatch: pytest.MonkeyPatch, shop: psycopg.Connection[Any]
) -> None:
    shop.execute("SET search_path = pg_catalog")
    monkeypatch.setenv("DRAIN_SCHEMA", "public")
    parent = drain.stage(shop, "m.f")
    child = drain.stage(shop, "m.f", after=parent)
    assert edges(database_url) == [waits(child, parent)]


def test_an_iterator_among_the_options_is_used_by_each_call(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        parent = drain.stage(connection, "m.f")
        stager = drain.job(name="m.g")(lambda: None).options(after=iter([parent]))
        children = [stager.stage(connection) for _ in range(2)]
    assert query(database_url, "SELECT child_id FROM job_edges ORDER BY 1") == [
        (child,) for child in children
    ]

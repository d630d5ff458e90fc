import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, cast

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import drain
from drain import StageError, astage, stage, stage_many
from drain.database import postgres
from drain.enqueuer import leader
from drain.errors import SchemaError
from drain.jobs.executors import Connectable
from drain.tables import staged
from drain.workers import job
from tests.helpers import ids_in, new_enqueuer, query

Opened: TypeAlias = Iterator[tuple[Connectable, Callable[[], None], Callable[[], None]]]


@job(name="staging.greet", queue="mail", max_attempts=3, timeout_seconds=7)
def greet(name: str) -> None:
    """A registered job that these tests stage and never run."""


@contextmanager
def engine_of(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    yield engine
    engine.dispose()


@contextmanager
def a_session(url: str) -> Opened:
    with engine_of(url) as engine, Session(engine) as session:
        yield session, session.commit, session.rollback


@contextmanager
def a_scoped_session(url: str) -> Opened:
    with engine_of(url) as engine:
        session = scoped_session(sessionmaker(engine))
        yield session, session.commit, session.rollback
        session.remove()


@contextmanager
def a_sqlalchemy_connection(url: str) -> Opened:
    with engine_of(url) as engine, engine.connect() as connection:
        yield connection, connection.commit, connection.rollback


@contextmanager
def a_psycopg_connection(url: str) -> Opened:
    with psycopg.connect(url) as connection:
        yield connection, connection.commit, connection.rollback


@contextmanager
def a_psycopg_cursor(url: str) -> Opened:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        yield cursor, connection.commit, connection.rollback


@contextmanager
def a_connection_with_dictionaries_for_rows(url: str) -> Opened:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield connection, connection.commit, connection.rollback


@contextmanager
def a_server_side_cursor(url: str) -> Opened:
    with psycopg.connect(url) as connection, connection.cursor("name") as cursor:
        yield cursor, connection.commit, connection.rollback


KINDS = [
    a_session,
    a_scoped_session,
    a_sqlalchemy_connection,
    a_psycopg_connection,
    a_psycopg_cursor,
    a_connection_with_dictionaries_for_rows,
    a_server_side_cursor,
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.replace("_", " "))


@every_kind
def test_staging_joins_the_open_transaction_and_never_commits(
    database_url: str, kind: Callable[[str], Any]
) -> None:
    with kind(database_url) as (connection, commit, _):
        first = stage(connection, "m.f", [1])
        second, third = stage_many(connection, "m.f", [(2,), {"b": 3}])
        assert ids_in(database_url, "staged_jobs") == []
        commit()

    assert ids_in(database_url, "staged_jobs") == [first, second, third]


@every_kind
def test_a_job_is_rolled_back_with_its_transaction(database_url: str, kind: Callable[[str], Any]) -> None:
    with kind(database_url) as (connection, commit, roll_back):
        stage(connection, "m.f", [1])
        stage_many(connection, "m.f", [(2,), (3,)])
        roll_back()
        kept = stage(connection, "m.f", [4])
        commit()

    assert ids_in(database_url, "staged_jobs") == [kept]


def test_a_job_is_rolled_back_with_its_savepoint(database_url: str) -> None:
    with engine_of(database_url) as engine, Session(engine) as session, session.begin():
        kept = stage(session, "m.f", [1])
        inner = session.begin_nested()
        stage(session, "m.f", [2])
        inner.rollback()

    assert ids_in(database_url, "staged_jobs") == [kept]


def test_staging_on_a_cursor_keeps_its_unfetched_rows(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        cursor = connection.execute("SELECT generate_series(1, 3)")
        stage(cursor, "m.f")

        assert cursor.fetchall() == [(1,), (2,), (3,)]


def test_every_given_option_is_staged_unchanged(database_url: str) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    with psycopg.connect(database_url) as connection:
        stage(
            connection,
            "shop.jobs.send",
            [1, "zwei", None, {"drei": [3.5, True]}],
            {"größe": "☃", "%s": ":x", "a'b": '"'},
            queue="mail",
            priority=-5,
            run_at=at,
            expires_at=at + timedelta(hours=1),
            tag="shop.order",
            max_attempts=0,
            timeout_seconds=9,
            context={"trace": "abc"},
        )

    (row,) = query(
        database_url,
        "SELECT job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag, "
        "max_attempts, timeout_seconds, context, matured_at, fencing_token, history FROM staged_jobs",
    )
    assert row == (
        "shop.jobs.send",
        [1, "zwei", None, {"drei": [3.5, True]}],
        {"größe": "☃", "%s": ":x", "a'b": '"'},
        "mail",
        -5,
        at,
        at + timedelta(hours=1),
        "shop.order",
        0,
        9,
        {"trace": "abc"},
        None,
        0,
        None,
    )


def test_two_columns_of_plain_sql_are_enough(database_url: str) -> None:
    query(database_url, "INSERT INTO staged_jobs (job_name, job_args) VALUES ('m.f', '[1]')")
    with psycopg.connect(database_url) as connection:
        stage(connection, "m.f", [1])

    by_hand, by_stage = query(database_url, "SELECT to_jsonb(staged_jobs) FROM staged_jobs ORDER BY id")
    for (row,) in (by_hand, by_stage):
        del row["id"], row["staged_at"], row["scheduled_at"], row["salt"]
    assert by_hand == by_stage
    assert (by_hand[0]["queue"], by_hand[0]["priority"], by_hand[0]["job_kwargs"]) == ("default", 0, {})


def test_registered_options_apply_unless_the_call_overrides_them(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        greet.stage(connection, "Ada")
        greet.stage_many(connection, [("Bob",), {"name": "Cy"}])
        stage(connection, greet, ["Dan"], queue="slow", max_attempts=0, timeout_seconds=1)

    rows = query(
        database_url,
        "SELECT job_name, job_args || jsonb_build_array(job_kwargs), queue, max_attempts, timeout_seconds "
        "FROM staged_jobs ORDER BY id",
    )
    assert rows == [
        ("staging.greet", ["Ada", {}], "mail", 3, 7),
        ("staging.greet", ["Bob", {}], "mail", 3, 7),
        ("staging.greet", [{"name": "Cy"}], "mail", 3, 7),
        ("staging.greet", ["Dan", {}], "slow", 0, 1),
    ]


def test_ids_are_returned_in_the_order_of_the_arguments(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        ids = stage_many(connection, "m.f", ((number,) for number in range(25_001)))

    assert len(ids) == 25_001
    assert ids == sorted(ids)
    numbers = query(database_url, "SELECT id, (job_args ->> 0)::integer FROM staged_jobs ORDER BY id")
    assert numbers == list(zip(ids, range(25_001), strict=True))


def test_many_large_arguments_are_staged_whole(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        ids = stage_many(connection, "m.f", ((number, "x" * 1_000_000) for number in range(20)))

    numbers = query(database_url, "SELECT id, (job_args ->> 0)::integer FROM staged_jobs ORDER BY id")
    assert numbers == list(zip(ids, range(20), strict=True))


def test_staging_no_jobs_returns_no_ids(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        assert stage_many(connection, "m.f", []) == []
        assert stage_many(connection, "m.f", iter(())) == []


def test_staging_is_one_statement(database_url: str) -> None:
    sent: list[str] = []
    with engine_of(database_url) as engine, engine.connect() as connection:
        event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
        stage(connection, "m.f", [1], tag="t")
        assert len(sent) == 1
        stage_many(connection, "m.f", [(number,) for number in range(500)])
        assert len(sent) == 2


CHECKS: list[tuple[str, str, dict[str, Any]]] = [
    ("job_name_must_not_be_empty", "", {}),
    ("job_name_must_not_be_empty", " m.f", {}),
    ("job_name_must_not_exceed_255_characters", "x" * 256, {}),
    ("job_arguments_must_not_exceed_1_mebibyte", "m.f", {"args": ["x" * 1_048_576]}),
    (
        "job_arguments_must_not_exceed_1_mebibyte",
        "m.f",
        {"args": ["ü" * 300_000], "kwargs": {"a": "ü" * 300_000}},
    ),
    ("tag_must_not_exceed_255_characters", "m.f", {"tag": "x" * 256}),
    ("context_must_not_exceed_64_kibibytes", "m.f", {"context": {"trace": "x" * 65_536}}),
    ("max_attempts_must_not_be_negative", "m.f", {"max_attempts": -1}),
    ("timeout_seconds_must_be_positive", "m.f", {"timeout_seconds": 0}),
    ("times_must_lie_between_the_years_1_and_9999", "m.f", {"run_at": datetime.min.replace(tzinfo=UTC)}),
    ("times_must_lie_between_the_years_1_and_9999", "m.f", {"expires_at": datetime.min.replace(tzinfo=UTC)}),
]


@pytest.mark.parametrize(("constraint", "name", "options"), CHECKS)
def test_an_unusable_job_is_refused_by_a_named_check(
    common_database_url: str, constraint: str, name: str, options: dict[str, Any]
) -> None:
    with psycopg.connect(common_database_url) as connection:
        with pytest.raises(psycopg.errors.CheckViolation) as caught:
            stage(connection, name, **options)
        assert caught.value.diag.constraint_name == constraint
        connection.rollback()

    assert ids_in(common_database_url, "staged_jobs") == []


USES: list[Callable[[Any], Any]] = [
    lambda connection: stage(connection, "m.f"),
    lambda connection: stage_many(connection, "m.f", [(1,)]),
    lambda connection: stage(connection, "m.f", idempotency_key="k"),
    lambda connection: drain.state(connection, 1),
]


@pytest.mark.parametrize("use", USES)
def test_a_database_without_our_tables_is_reported_in_one_line(
    empty_database_url: str, use: Callable[[Any], Any]
) -> None:
    with engine_of(empty_database_url) as engine:
        for connect in (lambda: psycopg.connect(empty_database_url), engine.connect):
            with connect() as connection, pytest.raises(SchemaError, match="run `drain init`") as caught:
                use(connection)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("connect", [psycopg.AsyncConnection.connect, asyncpg.connect])
def test_a_database_without_our_tables_is_reported_to_an_event_loop_too(
    empty_database_url: str, connect: Callable[[str], Any]
) -> None:
    async def use() -> None:
        connection = await connect(empty_database_url)
        try:
            async with connection.transaction():
                await astage(connection, "m.f")
        finally:
            await connection.close()

    with pytest.raises(SchemaError, match="run `drain init`"):
        asyncio.run(use())


@pytest.mark.parametrize("queue", ["", "a,b", "a b", "a\n", "x" * 101])
def test_an_invalid_queue_name_is_refused_before_anything_is_sent(
    common_database_url: str, queue: str
) -> None:
    ways: list[Callable[[psycopg.Connection], Any]] = [
        lambda connection: stage(connection, "m.f", queue=queue),
        lambda connection: stage(connection, greet, ["Ada"], queue=queue),
        lambda connection: stage(connection, "m.f", queue=queue, idempotency_key="k"),
        lambda connection: stage_many(connection, "m.f", [(1,)], queue=queue),
        lambda connection: asyncio.run(astage(cast(Any, connection), "m.f", queue=queue)),
    ]
    with psycopg.connect(common_database_url) as connection:
        connection.execute("SELECT")
        for way in ways:
            with pytest.raises(StageError, match="is not a queue name: letters, digits") as caught:
                way(connection)
            assert "\n" not in str(caught.value)
        assert connection.info.transaction_status == TransactionStatus.INTRANS


@pytest.mark.parametrize(
    ("column", "value", "constraint"),
    [
        ("job_args", "{}", "job_args_must_be_a_json_array"),
        ("job_args", "null", "job_args_must_be_a_json_array"),
        ("job_kwargs", "[]", "job_kwargs_must_be_a_json_object"),
        ("job_kwargs", '"a"', "job_kwargs_must_be_a_json_object"),
        ("queue", "a b", "queue_must_be_a_name_that_rq_can_carry"),
        ("scheduled_at", "infinity", "times_must_lie_between_the_years_1_and_9999"),
        ("expires_at", "-infinity", "times_must_lie_between_the_years_1_and_9999"),
    ],
)
def test_plain_sql_is_checked_like_everything_else(
    database_url: str, column: str, value: str, constraint: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        query(database_url, f"INSERT INTO staged_jobs (job_name, {column}) VALUES ('m.f', %s)", value)

    assert caught.value.diag.constraint_name == constraint


ID_BOUND = "id_must_lie_between_1_and_10_to_the_power_of_18"
TOKEN_BOUND = "fencing_token_must_lie_between_0_and_10_to_the_power_of_18"


@pytest.mark.parametrize(
    ("job_id", "token", "constraint"),
    [
        (0, 0, ID_BOUND),
        (-1, 0, ID_BOUND),
        (10**18, 0, ID_BOUND),
        (2**63 - 1, 0, ID_BOUND),
        (1, -1, TOKEN_BOUND),
        (1, 10**18 + 1, TOKEN_BOUND),
        (1, 2**63 - 1, TOKEN_BOUND),
    ],
)
def test_an_id_or_token_out_of_range_is_refused_when_staged(
    database_url: str, job_id: int, token: int, constraint: str
) -> None:
    statement = (
        "INSERT INTO staged_jobs (id, job_name, fencing_token) OVERRIDING SYSTEM VALUE VALUES (%s, 'm.f', %s)"
    )
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        query(database_url, statement, job_id, token)

    assert caught.value.diag.constraint_name == constraint
    query(database_url, statement, 10**18 - 1, 10**18)


VALUES = {
    "key = ''": "key_must_have_1_to_255_characters",
    "key = repeat('x', 256)": "key_must_have_1_to_255_characters",
    "unique_key = ''": "unique_key_must_have_1_to_255_characters",
    "unique_key = 'u', keep = 'newest'": "keep_must_be_first_or_last",
    "unique_key = 'u', quiet_seconds = 0": "quiet_seconds_must_be_positive_and_at_most_a_year",
    "unique_key = 'u', quiet_seconds = 'NaN'": "quiet_seconds_must_be_positive_and_at_most_a_year",
    "keep = 'last'": "keep_and_quiet_seconds_need_a_unique_key",
    "quiet_seconds = 1": "keep_and_quiet_seconds_need_a_unique_key",
    "starts_at = '9999-12-29Z'": "starts_at_must_lie_between_the_years_1_and_9999",
    "starts_at = '-infinity'": "starts_at_must_lie_between_the_years_1_and_9999",
}


@pytest.mark.parametrize(("change", "constraint"), VALUES.items())
def test_meaningless_values_are_refused_by_a_named_check(
    database_url: str, change: str, constraint: str
) -> None:
    query(database_url, "INSERT INTO staged_jobs (job_name) VALUES ('m.f')")
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        query(database_url, f"UPDATE staged_jobs SET {change}")

    assert caught.value.diag.constraint_name == constraint


def test_every_check_of_staged_jobs_is_tested(database_url: str) -> None:
    tried = {constraint for constraint, _, _ in CHECKS} | {
        "queue_must_be_a_name_that_rq_can_carry",
        *VALUES.values(),
        "job_args_must_be_a_json_array",
        "job_kwargs_must_be_a_json_object",
        ID_BOUND,
        TOKEN_BOUND,
    }
    checks = query(
        database_url,
        "SELECT conname FROM pg_constraint WHERE conrelid = 'staged_jobs'::regclass AND contype = 'c'",
    )

    assert {name for (name,) in checks} == tried


def test_an_id_cannot_be_chosen(database_url: str) -> None:
    with pytest.raises(psycopg.errors.GeneratedAlways):
        query(database_url, "INSERT INTO staged_jobs (id, job_name) VALUES (1, 'm.f')")


def impatient(database_url: str) -> psycopg.Connection:
    """A connection on which a wait for any lock is an error, not a wait."""
    return psycopg.connect(database_url, options="-c lock_timeout=1ms")


def test_staging_does_not_wait_for_a_batch_that_is_open(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(database_url, "INSERT INTO staged_jobs (job_name) VALUES ('m.f'), ('m.f')")
    move = staged.move
    meanwhile: list[int] = []

    def stage_after_the_move(*given: Any, **options: Any) -> None:
        move(*given, **options | {"commits": False})
        if not meanwhile:
            with impatient(database_url) as connection:
                meanwhile.append(stage(connection, "m.f"))

    monkeypatch.setattr(staged, "move", stage_after_the_move)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.run_once() == 2
        assert ids_in(database_url, "staged_jobs") == meanwhile
        enqueuer.flush()


def test_staging_does_not_wait_for_readers_of_the_table(database_url: str) -> None:
    with psycopg.connect(database_url) as reader, impatient(database_url) as connection:
        reader.execute("LOCK TABLE staged_jobs IN ACCESS SHARE MODE")
        reader.execute("SELECT * FROM staged_jobs FOR UPDATE")
        stage(connection, "m.f")


def test_staging_does_not_wait_for_an_enqueuer_that_falls_asleep_or_wakes(database_url: str) -> None:
    with postgres.connect(database_url, "test") as connection, impatient(database_url) as application:
        with leader.asleep(connection) as everybody_will_notify:
            assert everybody_will_notify
            stage(application, "m.f")
        with leader.asleep(connection) as everybody_will_notify:
            # That transaction has found out that somebody slept; it did not go on to share the lock.
            assert everybody_will_notify
            application.commit()
        stage(application, "m.f")
        with leader.asleep(connection) as everybody_will_notify:
            assert not everybody_will_notify


def listener(database_url: str) -> psycopg.Connection:
    connection = psycopg.connect(database_url, autocommit=True)
    connection.execute("LISTEN staged_jobs")
    return connection


def test_a_transaction_notifies_a_sleeping_enqueuer_and_no_other(database_url: str) -> None:
    with listener(database_url) as listening, postgres.connect(database_url, "test") as connection:
        query(database_url, "INSERT INTO staged_jobs (job_name) VALUES ('m.f')")
        with leader.asleep(connection):
            query(database_url, "INSERT INTO staged_jobs (job_name) SELECT 'm.f' FROM generate_series(1, 9)")
            query(database_url, "SET drain.notify = 'off'; INSERT INTO staged_jobs (job_name) VALUES ('m.f')")
        query(database_url, "INSERT INTO staged_jobs (job_name) VALUES ('m.f')")

        # Notifications come in the order of the commits, so after this one no other is on its way.
        query(database_url, "NOTIFY staged_jobs, 'the last one'")
        heard = [notice.payload for notice in listening.notifies(timeout=60, stop_after=2)]
        assert heard == ["", "the last one"]


def test_a_multi_row_statement_checks_once_whether_the_enqueuer_sleeps(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("SET track_functions = 'all'")
        stage_many(connection, "m.f", [(number,) for number in range(9)])
        calls = connection.execute(
            "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'drain_wake_enqueuer'"
        )
        assert calls.fetchall() == [(1,)]


def test_with_notify_off_staging_takes_no_advisory_lock(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("SET drain.notify = 'off'")
        stage(connection, "m.f")
        locks = connection.execute(
            "SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        assert locks.rowcount == 0

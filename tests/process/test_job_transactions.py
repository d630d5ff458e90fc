"""What a job writes in its transaction and its finish are one commit, exactly once or not at all."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy
from django.db import OperationalError as DjangoError
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

import drain
from drain import failpoints
from drain.config import Settings
from drain.enqueuer.redelivery import Redelivery
from drain.failpoints import FailurePoint
from drain.workers import (
    Dead,
    Defer,
    LeaseLostError,
    TransactionError,
    current_job,
    psycopg_transaction,
    transaction,
)
from drain.workers.context import async_connection_cache, connection_cache
from drain.workers.context.current import current_attempt
from drain.workers.entry import Worker
from tests import jobs_for_tests
from tests.blocks import WAYS, Block, InLoop, OfDjango, forget_django
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    RQ_PATIENCE_SECONDS,
    effects,
    environment,
    ids_in,
    new_enqueuer,
    query,
    wait_until,
)
from tests.inprocess_worker import FOREVER_SECONDS, HEARTBEAT_SECONDS, Workshop, leave
from tests.proxy import Proxy, proxied

QUICK: dict[str, Any] = {"lease_seconds": 30, "heartbeat_seconds": HEARTBEAT_SECONDS, "timeout_seconds": 60}


Handle = Session | psycopg.Connection[Any] | InLoop | OfDjango

# Those for a test that stages by `drain.stage`, or runs in the event loop of an async job.
SYNC = pytest.mark.parametrize("block", ["sqlalchemy", "psycopg"], indirect=True)
# Those whose statements a signal interrupts; an event loop is not interrupted, but told.
INTERRUPTED = pytest.mark.parametrize(
    "block", sorted(WAYS.keys() & {"sqlalchemy", "psycopg", "django"}), indirect=True
)
# Those that a job may roll back. Django refuses that within atomic().
ROLLED_BACK = pytest.mark.parametrize(
    "block", ["sqlalchemy", "psycopg", "async sqlalchemy", "async psycopg"], indirect=True
)
# Python 3.12 and newer warn of forks while other threads run, such as that of the heartbeat.
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
# What a job gets if the server ends its session.
Lost = (sqlalchemy.exc.OperationalError, psycopg.OperationalError, DjangoError)


@pytest.fixture(params=WAYS)
def block(request: pytest.FixtureRequest) -> Iterator[Block]:
    """Each of the ways to have a transaction."""
    yield WAYS[request.param]
    if request.param == "django":
        forget_django()


def execute(handle: Handle, statement: str) -> None:
    if isinstance(handle, Session):
        handle.execute(sqlalchemy.text(statement))
    else:
        handle.execute(statement.encode())


def savepoint(handle: Handle) -> AbstractContextManager[Any]:
    if isinstance(handle, Session):
        return handle.begin_nested()
    return handle.transaction() if isinstance(handle, psycopg.Connection) else handle.savepoint()


def one_event(caplog: pytest.LogCaptureFixture, name: str) -> str:
    (record,) = [record for record in caplog.records if getattr(record, "event", None) == name]
    return record.getMessage()


# --- both, or neither


def test_the_jobs_writes_and_its_finish_are_one_commit(shop: Workshop, block: Block) -> None:
    seen: list[tuple[list[str], str, bool]] = []

    def look() -> None:
        seen.append((shop.effects(), shop.whereabouts(job_id), current_job().finished))

    def act() -> None:
        with block() as session:
            leave(session, "written")
            look()
        look()

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert seen == [([], "inflight_jobs", False), (["written"], "finished_jobs", True)]
    assert shop.row(job_id)["fencing_token"] == 1


def test_a_block_that_writes_nothing_still_finishes_the_job(shop: Workshop, block: Block) -> None:
    seen: list[str] = []

    def act() -> None:
        with block():
            pass
        seen.append(shop.whereabouts(job_id))

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert seen == ["finished_jobs"]


def test_a_block_that_raises_writes_nothing_and_is_retried(shop: Workshop, block: Block) -> None:
    def act() -> None:
        with block() as session:
            leave(session, f"attempt {current_job().attempt}")
            if current_job().attempt == 1:
                raise ValueError("not yet")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert shop.row(job_id)["last_error"]["message"] == "not yet"
    assert shop.effects() == []
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["attempt 2"]


@pytest.mark.parametrize(
    ("error", "word"), [(Defer(60), "deferred"), (Dead("no such order"), "dead")], ids=repr
)
def test_a_job_may_defer_itself_or_give_up_within_its_block(
    shop: Workshop, block: Block, error: Exception, word: str
) -> None:
    def act() -> None:
        with block() as session:
            leave(session, "rolled back")
            raise error

    assert shop.work(shop.delivered(act)) == word
    assert shop.effects() == []


def test_a_job_that_catches_its_blocks_exception_finishes_without_its_writes(
    shop: Workshop, block: Block
) -> None:
    def write_and_fail() -> None:
        with block() as session:
            leave(session, "rolled back")
            raise ValueError("never mind")

    def act() -> None:
        with suppress(ValueError):
            write_and_fail()

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == []


@ROLLED_BACK
def test_a_job_may_roll_back_within_its_block_or_try_the_block_again(shop: Workshop, block: Block) -> None:
    def write(label: str) -> None:
        with block() as session:
            leave(session, "rolled back")
            session.rollback()
            leave(session, label)
            if label == "first":
                raise ValueError("again")

    def act() -> None:
        with suppress(ValueError):
            write("first")
        write("second")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["second"]


@SYNC
def test_jobs_staged_in_the_block_exist_only_if_the_job_finished(shop: Workshop, block: Block) -> None:
    def act() -> None:
        with block() as session:
            drain.stage(session, "shop.jobs.next", [current_job().attempt])
            if current_job().attempt == 1:
                raise ValueError("not yet")

    job_id = shop.delivered(act)
    assert shop.work_to_the_end(job_id) == ["retrying", "finished"]
    assert query(shop.database_url, "SELECT job_args FROM staged_jobs") == [([2],)]


def test_a_savepoint_is_rolled_back_on_its_own(shop: Workshop) -> None:
    def act() -> None:
        with transaction() as session:
            leave(session, "before")
            with suppress(sqlalchemy.exc.DataError), session.begin_nested():
                leave(session, "rolled back")
                session.execute(sqlalchemy.text("SELECT 1 / 0"))
            with session.begin_nested():
                leave(session, "nested")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["before", "nested"]


class Base(sqlalchemy.orm.DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    id: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column(primary_key=True)
    label: sqlalchemy.orm.Mapped[str]


def test_unflushed_session_objects_are_written_and_stay_readable(shop: Workshop) -> None:
    query(shop.database_url, "ALTER TABLE effects ADD PRIMARY KEY (id)")
    read: list[tuple[int, str]] = []

    def act() -> None:
        with transaction() as session:
            effect = Effect(label="an object")
            session.add(effect)
        read.append((effect.id, effect.label))

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["an object"]
    assert read == [(1, "an object")]


@SYNC
def test_an_async_job_may_open_its_transaction_in_the_loop_or_a_thread(shop: Workshop, block: Block) -> None:
    def in_a_thread(label: str) -> None:
        with block() as session:
            leave(session, label)

    async def in_the_loop(label: str) -> None:
        with block() as session:
            await asyncio.sleep(0)
            leave(session, label)

    async def act(label: str) -> None:
        if label == "thread":
            await asyncio.to_thread(in_a_thread, label)
        else:
            await in_the_loop(label)
        finished.append(current_job().finished)

    finished: list[bool] = []
    for label in ("thread", "loop"):
        job_id = shop.delivered(act, row={"kwargs": {"label": label}})
        assert shop.work(job_id) == "finished"
    assert shop.effects() == ["thread", "loop"]
    assert finished == [True, True]


# --- when somebody else has the job


@pytest.mark.parametrize("catches", [False, True])
def test_a_block_whose_lease_was_taken_over_is_rolled_back(
    shop: Workshop, block: Block, caplog: pytest.LogCaptureFixture, catches: bool
) -> None:
    def act() -> None:
        try:
            with block() as session:
                leave(session, "late")
                claims.append(shop.take_over(job_id))
        except LeaseLostError:
            assert not current_job().finished
            if not catches:
                raise

    claims: list[Any] = []
    job_id = shop.delivered(act)
    assert shop.work(job_id) == "stale"
    assert shop.effects() == []
    assert shop.stale_finishes() == [(job_id, 1, "finished" if catches else "nothing")]
    assert one_event(caplog, "stale_finish")
    assert shop.finish(claims[0])


@INTERRUPTED
def test_a_lost_lease_interrupts_a_running_statement_and_rolls_the_block_back(
    shop: Workshop,
    block: Block,
) -> None:
    told: list[float] = []

    def act() -> None:
        try:
            with block() as session:
                leave(session, "late")
                shop.take_over(job_id)
                execute(session, f"SELECT pg_sleep({FOREVER_SECONDS})")
        except LeaseLostError:
            told.append(signal.getitimer(signal.ITIMER_REAL)[0])
            raise

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "stale"
    assert shop.effects() == []
    assert shop.stale_finishes() == [(job_id, 1, "nothing")]
    assert told[0] > 10
    wait_until(lambda: not shop.backends("drain job", state="active"))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_server_ends_the_statement_of_a_process_that_died(shop: Workshop, kind: str) -> None:
    """Its locks would delay the next attempt until the statement ends."""
    connection: psycopg.BaseConnection[Any]
    if kind == "sync":
        connection = connection_cache.connect(shop.database_url)
    else:
        connection = asyncio.run(async_connection_cache._connect(shop.database_url))
    connection.pgconn.send_query(f"SELECT pg_sleep({FOREVER_SECONDS})".encode())
    wait_until(lambda: shop.backends("drain job", state="active"))
    connection.pgconn.finish()
    wait_until(lambda: not shop.backends("drain job"))


# --- when its time is over


def sleep_in_python(_: Handle) -> None:
    time.sleep(FOREVER_SECONDS)


def sleep_in_the_database(session: Handle) -> None:
    execute(session, f"SELECT pg_sleep({FOREVER_SECONDS})")


def wait_for_a_lock(session: Handle) -> None:
    with psycopg.connect(str(os.environ["DRAIN_DATABASE_URL"])) as somebody:
        somebody.execute("LOCK TABLE dead_jobs")
        execute(session, "SELECT FROM dead_jobs")


@INTERRUPTED
@pytest.mark.parametrize("wait", [sleep_in_python, sleep_in_the_database, wait_for_a_lock])
def test_a_block_that_takes_too_long_is_rolled_back_on_the_server_too(
    shop: Workshop, block: Block, monkeypatch: pytest.MonkeyPatch, wait: Callable[[Handle], None]
) -> None:
    monkeypatch.setenv("DRAIN_DATABASE_URL", shop.database_url)

    def act() -> None:
        with block() as session:
            leave(session, "late")
            if current_job().attempt == 1:
                wait(session)

    job_id = shop.delivered(act, timeout_seconds=1)
    assert shop.work(job_id) == "retrying"
    assert shop.row(job_id)["last_error"]["type"] == "drain.workers.errors.JobTimeoutError"
    assert shop.effects() == []
    wait_until(lambda: not shop.backends("drain job", state="active"))
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["late"]


# --- after the commit


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("the mail server is away"), "ValueError: the mail server is away"),
        (SystemExit(3), "SystemExit: 3"),
        (Dead("no such customer"), "no such customer"),
        (Defer(60), "asked to be run later"),
        (LeaseLostError("so I think"), "so I think"),
    ],
    ids=repr,
)
def test_a_job_that_raises_after_its_commit_stays_finished_and_is_reported(
    shop: Workshop, block: Block, caplog: pytest.LogCaptureFixture, error: BaseException, told: str
) -> None:
    def act() -> None:
        with block() as session:
            leave(session, "written")
        raise error

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert shop.whereabouts(job_id) == "finished_jobs"
    assert shop.effects() == ["written"]
    text = one_event(caplog, "failed_after_finish")
    assert f"job {job_id} (tests.act) is finished" in text
    assert told in text
    assert shop.stale_finishes() == []


# --- what a block is not for


def commit(session: Session) -> None:
    session.commit()


def begin(session: Session) -> None:
    with session.begin():
        leave(session, "committed early")


def begin_after_a_rollback(session: Session) -> None:
    session.rollback()
    begin(session)


def commit_the_connection(session: Session) -> None:
    session.connection().commit()


def commit_its_transaction(session: Session) -> None:
    found = session.connection().get_transaction()
    assert found is not None
    found.commit()


def nest(_: Session) -> None:
    with transaction():
        pass


@pytest.mark.parametrize(
    "misuse", [commit, begin, begin_after_a_rollback, commit_the_connection, commit_its_transaction, nest]
)
def test_committing_before_the_finish_is_refused_with_nothing_written(
    shop: Workshop, misuse: Callable[[Session], None]
) -> None:
    def act() -> None:
        with transaction() as session:
            leave(session, "written early")
            misuse(session)

    job_id = shop.delivered(act, max_attempts=1)
    assert shop.work(job_id) == "dead"
    found = shop.row(job_id)
    assert found["last_error"]["type"] == "drain.workers.errors.TransactionError"
    assert "transaction" in found["explanation"]
    assert shop.effects() == []

    # Nothing of it is left on the connection for the next job.
    assert shop.work(shop.delivered(write_and_finish, name="tests.next")) == "finished"
    assert shop.effects() == ["the next job"]


def commit_by_psycopg(connection: psycopg.Connection[Any]) -> None:
    connection.commit()


def leave_psycopgs_block(connection: psycopg.Connection[Any]) -> None:
    with connection:
        leave(connection, "committed early")


def let_each_commit_by_itself(connection: psycopg.Connection[Any]) -> None:
    connection.rollback()
    connection.autocommit = True


def commit_in_two_phases(connection: psycopg.Connection[Any]) -> None:
    connection.rollback()
    connection.tpc_begin("early")


def leave_a_pipeline_open(connection: psycopg.Connection[Any]) -> None:
    left_open.append(connection.pipeline())
    left_open[-1].__enter__()


def leave_a_savepoint_open(connection: psycopg.Connection[Any]) -> None:
    left_open.append(connection.transaction())
    left_open[-1].__enter__()


left_open: list[AbstractContextManager[Any]] = []


@pytest.mark.parametrize(
    "misuse",
    [
        *(commit_by_psycopg, leave_psycopgs_block, let_each_commit_by_itself, commit_in_two_phases),
        *(leave_a_pipeline_open, leave_a_savepoint_open),
    ],
)
def test_committing_a_psycopg_transaction_early_is_refused_with_nothing_written(
    shop: Workshop, misuse: Callable[[psycopg.Connection[Any]], None]
) -> None:
    def act() -> None:
        with psycopg_transaction() as connection:
            leave(connection, "written early")
            misuse(connection)

    def write_more() -> None:
        with psycopg_transaction() as connection:
            leave(connection, "the next job")

    job_id = shop.delivered(act, max_attempts=1)
    assert shop.work(job_id) == "dead"
    assert shop.row(job_id)["last_error"]["type"] == "drain.workers.errors.TransactionError"
    assert shop.effects() == []
    assert shop.work(shop.delivered(write_more, name="tests.next")) == "finished"
    assert shop.effects() == ["the next job"]


@pytest.mark.parametrize("after", ["nothing", "a statement", "a rollback"])
def test_a_nested_psycopg_transaction_is_a_savepoint(shop: Workshop, after: str) -> None:
    def act() -> None:
        with psycopg_transaction() as connection:
            if after != "nothing":
                leave(connection, "before")
            if after == "a rollback":
                connection.rollback()
            with connection.transaction():
                leave(connection, "kept")
            assert shop.effects() == []
            with suppress(psycopg.DataError), connection.transaction():
                leave(connection, "rolled back")
                connection.execute("SELECT 1 / 0")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == (["before"] if after == "a statement" else []) + ["kept"]


def set_the_rows(connection: psycopg.Connection[Any]) -> None:
    connection.row_factory = dict_row


def set_the_cursors(connection: psycopg.Connection[Any]) -> None:
    connection.cursor_factory = psycopg.RawCursor


def set_the_isolation(connection: psycopg.Connection[Any]) -> None:
    connection.rollback()
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE


def set_it_to_read_only(connection: psycopg.Connection[Any]) -> None:
    connection.rollback()
    connection.read_only = False


def set_it_to_prepare(connection: psycopg.Connection[Any]) -> None:
    connection.prepare_threshold = 0


@pytest.mark.parametrize(
    "set_", [set_the_rows, set_the_cursors, set_the_isolation, set_it_to_read_only, set_it_to_prepare]
)
def test_connection_settings_do_not_leak_into_the_next_job(
    shop: Workshop, set_: Callable[[psycopg.Connection[Any]], None]
) -> None:
    seen: list[Any] = []

    def act() -> None:
        with psycopg_transaction() as connection:
            settings = (connection.read_only, connection.prepare_threshold)
            level = "current_setting('transaction_isolation')"
            seen.append((connection.execute(f"SELECT %s::integer, {level}", (1,)).fetchone(), settings))
            set_(connection)

    for _ in range(2):
        assert shop.work(shop.delivered(act)) == "finished"
    assert seen == [((1, "read committed"), (None, 5))] * 2


def test_rows_as_dicts_hide_no_lost_lease(shop: Workshop) -> None:
    def act() -> None:
        with psycopg_transaction() as connection:
            connection.row_factory = dict_row
            leave(connection, "late")
            shop.take_over(job_id)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "stale"
    assert shop.stale_finishes() == [(job_id, 1, "nothing")]
    assert shop.effects() == []


def test_statements_after_a_block_are_not_committed_with_the_next_job(
    shop: Workshop,
) -> None:
    def act() -> None:
        with psycopg_transaction() as connection:
            leave(connection, "within")
        leave(connection, "afterwards")

    for _ in range(2):
        assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["within"] * 2


def test_a_connection_closed_after_its_block_is_not_reused(shop: Workshop) -> None:
    def act() -> None:
        with psycopg_transaction() as connection:
            leave(connection, "within")
        connection.close()

    for _ in range(2):
        assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["within"] * 2


def test_a_session_used_after_its_block_is_not_committed_with_the_next_job(shop: Workshop) -> None:
    def act() -> None:
        with transaction() as session:
            leave(session, "within")
        leave(session, "afterwards")
        sessions.append(session)

    sessions: list[Session] = []
    for _ in range(3):
        assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["within"] * 3
    assert query(shop.database_url, "SELECT count(*) FROM finished_jobs") == [(3,)]
    for session in sessions:
        session.close()


def test_looking_at_the_tables_first_changes_nothing_about_the_commit(shop: Workshop) -> None:
    def act() -> None:
        with transaction() as session:
            assert sqlalchemy.inspect(session.get_bind()).has_table("effects")
            leave(session, "written")

    for _ in range(2):
        assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["written"] * 2
    assert query(shop.database_url, "SELECT count(*) FROM finished_jobs") == [(2,)]


def test_rolling_back_a_savepoint_with_prepared_statements_does_not_stop_the_finish(
    shop: Workshop, block: Block
) -> None:
    """psycopg has prepared what is often executed by then, and forgets all of that with a rollback."""

    def act() -> None:
        with block() as handle:
            for number in range(8):
                leave(handle, str(number))
            with suppress(ValueError), savepoint(handle):
                leave(handle, "rolled back")
                raise ValueError

    for _ in range(2):
        assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == [str(number) for number in range(8)] * 2


def test_a_sessions_isolation_level_does_not_leak_into_the_next(shop: Workshop) -> None:
    seen: list[Any] = []
    level = sqlalchemy.text("SELECT current_setting('transaction_isolation')")

    def act() -> None:
        with transaction() as session:
            seen.append(session.scalar(level))
            session.rollback()
            session.connection(execution_options={"isolation_level": "SERIALIZABLE"})

    for _ in range(2):
        assert shop.work(shop.delivered(act)) == "finished"
    assert seen == ["read committed"] * 2


def divide_at_the_commit(shop: Workshop) -> None:
    query(
        shop.database_url,
        """
        CREATE FUNCTION divide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 / 0; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER divides AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION divide()
        """,
    )


def test_a_commit_refused_by_a_trigger_is_not_a_lost_lease(shop: Workshop, block: Block) -> None:
    """Though it fails in the words that a refused finish has."""
    divide_at_the_commit(shop)

    def act() -> None:
        with block() as session:
            leave(session, "refused")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert "division by zero" in shop.row(job_id)["last_error"]["message"]
    assert shop.effects() == []


def write_and_finish() -> None:
    with transaction() as session:
        leave(session, "the next job")


def test_a_second_transaction_is_refused_and_the_job_stays_finished(
    shop: Workshop, block: Block, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> None:
        with block() as session:
            leave(session, "first")
        with block() as session:
            leave(session, "second")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["first"]
    assert "already has its transaction" in one_event(caplog, "failed_after_finish")


def test_a_transaction_left_open_fails_the_job_instead_of_losing_its_writes(
    shop: Workshop,
    block: Block,
) -> None:
    opened: list[Any] = []

    def act() -> None:
        opened.append(block())
        leave(opened[-1].__enter__(), "open")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert "still open" in shop.row(job_id)["last_error"]["message"]
    opened.clear()
    assert shop.effects() == []


def throw_it_away() -> None:
    block = transaction()
    leave(block.__enter__(), "lost")


def throw_a_stack_away() -> None:
    stack = ExitStack()
    leave(stack.enter_context(transaction()), "lost")


def leave_a_generator_unfinished() -> None:
    def write() -> Iterator[None]:
        with transaction() as session:
            leave(session, "lost")
            yield

    next(write())


@pytest.mark.parametrize("act", [throw_it_away, throw_a_stack_away, leave_a_generator_unfinished])
def test_an_abandoned_transaction_fails_the_job_too(shop: Workshop, act: Callable[[], None]) -> None:
    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert "still open" in shop.row(job_id)["last_error"]["message"]
    assert shop.effects() == []


def test_another_transaction_does_not_make_up_for_an_abandoned_one(shop: Workshop) -> None:
    def act() -> None:
        throw_it_away()
        with transaction() as session:
            leave(session, "second")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert "already has its transaction" in shop.row(job_id)["last_error"]["message"]
    assert shop.effects() == []


def test_a_repeatable_read_block_that_outlasts_a_heartbeat_fails_with_the_reason(shop: Workshop) -> None:
    def act() -> None:
        with transaction() as session:
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            leave(session, "written")
            before = current_job().lease_expires_at
            if current_job().attempt == 1:
                wait_until(lambda: current_job().lease_expires_at > before)

    job_id = shop.delivered(act, lease_seconds=30, heartbeat_seconds=0.5)
    assert shop.work(job_id) == "retrying"
    assert "A heartbeat has extended the job's lease" in shop.row(job_id)["last_error"]["traceback"]
    assert shop.effects() == []


# --- children that a job forks


@FORKS
@pytest.mark.parametrize(
    ("error", "code"), [(SystemExit(3), 3), (ValueError("a child's"), 1), (None, 1)], ids=repr
)
def test_a_child_that_leaves_the_block_ends_nothing_of_its_parents(
    shop: Workshop, block: Block, error: BaseException | None, code: int
) -> None:
    codes: list[int] = []

    def act() -> None:
        with block() as handle:
            leave(handle, "before the fork")
            if child := os.fork():
                codes.append(exit_code_of(child))
                leave(handle, "after the fork")
                if current_job().attempt == 1:
                    raise ValueError("not yet")
            elif error is not None:
                raise error

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert shop.row(job_id)["last_error"]["message"] == "not yet"
    assert shop.effects() == []
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["before the fork", "after the fork"]
    assert codes == [code] * 2


@FORKS
def test_a_forked_child_that_leaves_a_savepoint_rolls_back_nothing(shop: Workshop, block: Block) -> None:
    def act() -> None:
        with block() as handle, savepoint(handle):
            leave(handle, "before the fork")
            if not (child := os.fork()):
                raise SystemExit
            exit_code_of(child)
            leave(handle, "after the fork")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["before the fork", "after the fork"]


@FORKS
def test_a_child_writes_nothing_into_the_transaction_of_its_parent(shop: Workshop, block: Block) -> None:
    codes: list[int] = []

    def act() -> None:
        with block() as handle:
            leave(handle, "before the fork")
            if not (child := os.fork()):
                leave(handle, "of the child")
            codes.append(exit_code_of(child))
            leave(handle, "after the fork")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["before the fork", "after the fork"]
    assert codes == [1]


def exit_code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- commits in SQL


@pytest.mark.parametrize("catches", [False, True])
@pytest.mark.parametrize("first", ["", "INSERT INTO effects (label) VALUES ('committed early'); "])
def test_a_job_that_commits_in_sql_fails_and_later_writes_are_undone(
    shop: Workshop, block: Block, catches: bool, first: str
) -> None:
    def act() -> None:
        with block() as handle:
            if not first:
                leave(handle, "committed early")
            with suppress(*[TransactionError] * catches):
                execute(handle, f"{first}COMMIT")
            leave(handle, "late")

    job_id = shop.delivered(act, max_attempts=1)
    assert shop.work(job_id) == "dead"
    assert "begins and commits together" in shop.row(job_id)["explanation"]
    assert shop.effects() == ["committed early"]


def test_a_commit_in_sql_after_the_block_fails_no_later_job(shop: Workshop) -> None:
    def act() -> None:
        with psycopg_transaction() as connection:
            leave(connection, "within")
        with suppress(TransactionError):
            connection.execute("COMMIT")

    for _ in range(2):
        assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["within"] * 2


# --- when the connection is lost


@contextmanager
def once_at(point: FailurePoint, act: Callable[[], object]) -> Iterator[None]:
    """Let something happen the first time that this process reaches the point."""
    left = [act]

    def hook(failpoint: FailurePoint) -> None:
        if failpoint is point and left:
            left.pop()()

    failpoints.set_hook(hook)
    try:
        yield
    finally:
        failpoints.set_hook(None)
        assert not left, "the point was not reached"


@pytest.mark.parametrize("point", [None, FailurePoint.WRITTEN], ids=str)
def test_a_terminated_session_writes_nothing_and_the_next_attempt_everything(
    shop: Workshop, block: Block, point: FailurePoint | None
) -> None:
    def act() -> None:
        with block() as session:
            leave(session, "first")
            if point is None and current_job().attempt == 1:
                shop.terminate("drain job")
            leave(session, "second")

    job_id = shop.delivered(act)
    if point is None:
        assert shop.work(job_id) == "retrying"
    else:
        with once_at(point, lambda: shop.terminate("drain job")):
            assert shop.work(job_id) == "retrying"
    assert shop.effects() == []
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["first", "second"]


def test_a_session_that_was_ended_between_two_jobs_is_replaced(shop: Workshop, block: Block) -> None:
    def act() -> None:
        with block() as session:
            leave(session, "the next job")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.terminate("drain job") == 1
    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["the next job"] * 2


@pytest.fixture
def between(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Workshop]]:
    """A worker that reaches its PostgreSQL through a proxy."""
    monkeypatch.setattr("drain.jobs.registry._jobs", {})
    with proxied(database_url) as (proxy, through), closing(Worker(Settings(database_url=through))) as worker:
        jobs_for_tests.create_effects(database_url)
        yield proxy, Workshop(database_url, worker)


@pytest.mark.parametrize("max_attempts", [1, 3], ids=["last attempt", "not the last"])
def test_a_commit_whose_answer_was_lost_counts_once(
    between: tuple[Proxy, Workshop], block: Block, caplog: pytest.LogCaptureFixture, max_attempts: int
) -> None:
    proxy, shop = between

    def act() -> None:
        with block() as session:
            leave(session, "written")
            proxy.lose = b"COMMIT"

    job_id = shop.delivered(act, max_attempts=max_attempts)
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["written"]
    assert shop.row(job_id)["attempts"] == 1
    assert shop.stale_finishes() == []
    told = {getattr(record, "event", None) for record in caplog.records}
    assert not told & {"stale_finish", "job_failed", "job_dead", "lease_lost"}


def test_retrying_after_an_unanswered_commit_writes_nothing_twice(
    between: tuple[Proxy, Workshop], block: Block, caplog: pytest.LogCaptureFixture
) -> None:
    proxy, shop = between

    def act() -> None:
        with suppress(*Lost), block() as session:
            leave(session, "written")
            proxy.lose = b"COMMIT"
        assert proxy.lose is None
        assert not current_job().finished
        with block() as session:
            leave(session, "written")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["written"]
    assert "whose commit got no answer" in one_event(caplog, "failed_after_finish")


def test_a_heartbeat_after_an_unanswered_commit_reports_no_lost_lease(
    between: tuple[Proxy, Workshop], block: Block, caplog: pytest.LogCaptureFixture
) -> None:
    proxy, shop = between

    def act() -> None:
        watched = current_attempt().lease
        with suppress(*Lost), block() as session:
            leave(session, "written")
            proxy.lose = b"COMMIT"
        wait_until(lambda: watched.ending or watched.lost)

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "finished"
    assert "lease of attempt" not in caplog.text


def test_a_commit_that_never_reached_the_server_does_not_count(
    between: tuple[Proxy, Workshop], block: Block
) -> None:
    proxy, shop = between

    def act() -> None:
        with block() as session:
            leave(session, f"attempt {current_job().attempt}")
            if current_job().attempt == 1:
                proxy.heard, proxy.lose = False, b"COMMIT"

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert shop.effects() == []
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["attempt 2"]


# --- processes


@pytest.mark.usefixtures("processes")
def test_a_forking_rq_worker_has_a_connection_for_each_job(database_url: str, redis_url: str) -> None:
    jobs_for_tests.create_effects(database_url)
    with psycopg.connect(database_url) as connection:
        ids = [drain.stage(connection, jobs_for_tests.record_in_transaction, [label]) for label in ("a", "b")]
    with new_enqueuer(database_url, redis_url) as enqueuer:
        Redelivery(enqueuer).recover()
        enqueuer.drain()
    told = {"DRAIN_JOBS": jobs_for_tests.MODULE, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-m", "rq.cli", "worker", "--url", redis_url, "--burst", "default"],
        env=environment(database_url, redis_url, **told),
        capture_output=True,
        text=True,
        timeout=RQ_PATIENCE_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert ids_in(database_url, "finished_jobs") == ids
    assert effects(database_url) == ["a", "b"]
    assert query(database_url, "SELECT count(DISTINCT worker) FROM effects") == [(2,)]


@pytest.mark.usefixtures("processes")
def test_a_process_that_forks_and_its_child_do_not_share_a_connection(database_url: str) -> None:
    jobs_for_tests.create_effects(database_url)
    result = subprocess.run(
        [sys.executable, "-m", "tests.fork_between_jobs"],
        env=environment(database_url, "", DRAIN_JOBS=jobs_for_tests.MODULE),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (parent, worker, session), (child, *others), again = map(str.split, result.stdout.splitlines())
    assert (parent, child, again) == ("finished", "finished", ["finished", worker, session])
    assert len({worker, session, *others}) == 4
    assert effects(database_url) == ["parent", "child", "parent again"]

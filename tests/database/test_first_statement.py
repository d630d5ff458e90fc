"""The first statement of a job's transaction begins it, in one exchange with the server."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from types import FrameType
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.pq import PipelineStatus, TransactionStatus

from drain.database import cursor, postgres
from drain.database.cursor import BeginningCursor, TransactionCursor, execute_and_commit
from drain.workers.context.connection import JobConnection
from drain.workers.errors import Dead, JobTimeoutError

# Committed executions after which psycopg has prepared a statement; a rollback makes it forget them.
PREPARED = 6
ADD = "INSERT INTO numbers VALUES (%s) RETURNING number"
ADD_OR_NOT: LiteralString = """
INSERT INTO numbers VALUES (%s) ON CONFLICT (number) DO UPDATE SET number = excluded.number RETURNING number
"""


@pytest.fixture
def connection(database_url: str) -> Iterator[JobConnection]:
    with psycopg.connect(database_url, autocommit=True) as administrator:
        administrator.execute("CREATE TABLE numbers (number integer PRIMARY KEY)")
    with closing(postgres.connect(database_url, "drain job", kind=JobConnection)) as connection:
        assert isinstance(connection, JobConnection)
        connection.be_ready()
        yield connection


def is_as_before(connection: JobConnection) -> bool:
    states = (connection.pgconn.transaction_status, connection.pgconn.pipeline_status)
    return states == (TransactionStatus.INTRANS, PipelineStatus.OFF)


def execute_often(connection: JobConnection, statement: LiteralString, parameters: Sequence[object]) -> None:
    """Let psycopg prepare a statement."""
    for _ in range(PREPARED):
        connection.execute(statement, parameters)
        psycopg.Connection.commit(connection)
    assert connection._prepared._names


def begin_commands(connection: JobConnection, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Commands that are sent by themselves from now on."""
    sent: list[bytes] = []
    execute = JobConnection._exec_command

    def noted(self: JobConnection, command: bytes, *args: Any, **kwargs: Any) -> Any:
        sent.append(command)
        return execute(self, command, *args, **kwargs)

    monkeypatch.setattr(JobConnection, "_exec_command", noted)
    return sent


def test_the_installed_psycopg_version_is_supported() -> None:
    assert TransactionCursor is BeginningCursor


def test_a_prepared_statement_is_sent_together_with_the_begin(
    connection: JobConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_often(connection, ADD_OR_NOT, (1,))
    sent = begin_commands(connection, monkeypatch)
    cursor = connection.execute(ADD_OR_NOT, (7,))

    assert (cursor.fetchall(), cursor.rowcount, cursor.statusmessage) == ([(7,)], 1, "INSERT 0 1")
    assert is_as_before(connection)
    assert sent == []
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM numbers").fetchall() == [(1,)]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_first_statement_returns_binary_values_on_request(
    connection: JobConnection, is_prepared: bool
) -> None:
    if is_prepared:
        execute_often(connection, "SELECT %s::integer", (1,))
    cursor = connection.cursor().execute("SELECT %s::integer", (7,), binary=True)
    assert cursor.pgresult is not None
    assert (cursor.pgresult.fformat(0), cursor.fetchall()) == (1, [(7,)])


def test_only_the_first_statement_begins(connection: JobConnection) -> None:
    warnings: list[psycopg.errors.Diagnostic] = []
    connection.add_notice_handler(warnings.append)
    for number in range(2):
        connection.execute(ADD, (number,))
    assert warnings == []
    assert is_as_before(connection)


def test_a_transaction_that_cannot_begin_says_why(connection: JobConnection) -> None:
    connection._begin_statement = b"BEGIN READ READ"
    with pytest.raises(psycopg.errors.SyntaxError, match="READ"):
        connection.execute(ADD, (7,))
    assert connection.pgconn.pipeline_status == PipelineStatus.OFF
    connection._begin_statement = b"BEGIN"
    assert connection.execute(ADD, (7,)).fetchall() == [(7,)]


def test_the_statement_cache_does_not_grow_without_bound(
    connection: JobConnection,
) -> None:
    connection.prepared_max = 2
    for number in range(5):
        connection.execute(f"SELECT %s AS number_{number}".encode(), (1,))
        psycopg.Connection.commit(connection)
    assert len(connection._prepared._counts) <= 2


def test_an_unprepared_statement_is_also_sent_together_with_the_begin(
    connection: JobConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As through a pooler."""
    connection.prepare_threshold = None
    sent = begin_commands(connection, monkeypatch)
    assert connection.execute(ADD, (7,)).fetchall() == [(7,)]
    assert is_as_before(connection)
    assert sent == []


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_first_statement_that_fails_leaves_a_transaction_to_roll_back(
    connection: JobConnection, is_prepared: bool
) -> None:
    if is_prepared:
        execute_often(connection, "SELECT 1 / %s::integer", (1,))
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / %s::integer", (0,))
    assert connection.pgconn.transaction_status == TransactionStatus.INERROR
    assert connection.pgconn.pipeline_status == PipelineStatus.OFF
    connection.rollback()
    assert connection.execute(ADD, (2,)).fetchall() == [(2,)]


@pytest.mark.parametrize("parameters", [(), {}], ids=["positions", "names"])
def test_several_statements_can_be_sent_first_as_by_sqlalchemy(
    connection: JobConnection, parameters: Any
) -> None:
    """SQLAlchemy passes parameters along though there are none."""
    connection.execute("INSERT INTO numbers VALUES (1); INSERT INTO numbers VALUES (2)", parameters)
    assert is_as_before(connection)
    assert connection.execute("SELECT count(*) FROM numbers").fetchall() == [(2,)]


def test_too_many_parameters_leave_a_usable_transaction(
    connection: JobConnection,
) -> None:
    with pytest.raises(psycopg.OperationalError, match="number of parameters"):
        connection.execute("SELECT 1 WHERE 1 IN (" + ",".join(["%s"] * 65_536) + ")", range(65_536))
    assert is_as_before(connection)
    assert connection.execute(ADD, (7,)).fetchall() == [(7,)]


def test_a_session_that_ends_during_the_first_statement_says_why(connection: JobConnection) -> None:
    with pytest.raises(psycopg.errors.AdminShutdown):
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(%s)", (30,))
    assert connection.closed


@pytest.mark.parametrize("error", [JobTimeoutError("its time is over"), Dead("stopped by RQ's stop-job")])
def test_a_first_statement_that_is_interrupted_is_cancelled(
    connection: JobConnection, error: Exception
) -> None:
    def ring(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(type(error)):
            connection.execute("SELECT pg_sleep(%s)", (30,))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert connection.pgconn.transaction_status == TransactionStatus.INERROR
    assert connection.pgconn.pipeline_status == PipelineStatus.OFF


def interrupt_at(line: int, seen: list[int]) -> Callable[..., Any]:
    """Trace function that raises at this line of the cursor's code, of those that are executed."""

    def trace(frame: FrameType, event: str, _arg: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != cursor.__file__:
            return None
        if event == "line":
            seen.append(frame.f_lineno)
            if len(seen) == line:
                sys.settrace(None)
                raise JobTimeoutError("its time is over")
        return trace

    return trace


@pytest.mark.parametrize("is_prepared", [False, True])
def test_no_statement_autocommits_after_an_interruption_at_any_line(
    database_url: str, connection: JobConnection, is_prepared: bool
) -> None:
    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        with closing(postgres.connect(database_url, "drain job", kind=JobConnection)) as interrupted:
            assert isinstance(interrupted, JobConnection)
            interrupted.be_ready()
            if is_prepared:
                execute_often(interrupted, ADD_OR_NOT, (-1,))
            sys.settrace(interrupt_at(line, []))
            try:
                interrupted.execute(ADD_OR_NOT, (line,))
                was_interrupted = False
            except JobTimeoutError:
                # Where the pipeline is left open, nothing else is taken.
                with suppress(psycopg.Error):
                    interrupted.execute(ADD_OR_NOT, (line,))
            finally:
                sys.settrace(None)
    assert line > 20
    assert connection.execute("SELECT number FROM numbers WHERE number > 0").fetchall() == []


def _copy_on(cursor: psycopg.Cursor[Any]) -> None:
    with cursor.copy("COPY numbers FROM STDIN") as copy:
        copy.write_row((1,))


def _stream_on(cursor: psycopg.Cursor[Any]) -> None:
    assert list(cursor.stream(ADD, (1,))) == [(1,)]


@pytest.mark.parametrize("write", [_copy_on, _stream_on], ids=lambda way: way.__name__)
def test_a_cursor_begins_a_transaction_even_after_an_unsent_statement(
    connection: JobConnection, write: Callable[[psycopg.Cursor[Any]], None]
) -> None:
    cursor = connection.cursor()
    with pytest.raises(psycopg.ProgrammingError, match="placeholder"):
        cursor.execute(ADD, (1, 2))
    write(cursor)
    assert is_as_before(connection)
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM numbers").fetchall() == [(0,)]


def _several(connection: JobConnection) -> None:
    connection.execute("INSERT INTO numbers VALUES (1); INSERT INTO numbers VALUES (2)")


def _copy(connection: JobConnection) -> None:
    with connection.cursor().copy("COPY numbers FROM STDIN") as copy:
        copy.write_row((1,))
        copy.write_row((2,))


def _many(connection: JobConnection) -> None:
    connection.cursor().executemany("INSERT INTO numbers VALUES (%s)", [(1,), (2,)])


def _pipeline(connection: JobConnection) -> None:
    with connection.pipeline():
        connection.execute("INSERT INTO numbers VALUES (%s)", (1,))
        connection.execute("INSERT INTO numbers VALUES (%s)", (2,))


def _savepoint(connection: JobConnection) -> None:
    with connection.transaction():
        _many(connection)


def _server_cursor(connection: JobConnection) -> None:
    with connection.cursor("named") as cursor:
        cursor.execute("SELECT number FROM generate_series(1, %s) AS number", (2,))
        found = cursor.fetchall()
    connection.cursor().executemany("INSERT INTO numbers VALUES (%s)", found)


def _streamed(connection: JobConnection) -> None:
    numbers = list(connection.cursor().stream("SELECT number FROM generate_series(1, %s) AS number", (2,)))
    connection.cursor().executemany("INSERT INTO numbers VALUES (%s)", numbers)


@pytest.mark.parametrize(
    "begin",
    [_several, _copy, _many, _pipeline, _savepoint, _server_cursor, _streamed],
    ids=lambda way: way.__name__,
)
def test_every_other_way_to_begin_opens_one_transaction(
    connection: JobConnection, begin: Callable[[JobConnection], None]
) -> None:
    for _ in range(2):
        begin(connection)
        assert is_as_before(connection)
        assert connection.execute("SELECT number FROM numbers ORDER BY number").fetchall() == [(1,), (2,)]
        connection.rollback()
    assert connection.execute("SELECT number FROM numbers").fetchall() == []


def test_the_isolation_level_of_the_connection_is_used(connection: JobConnection) -> None:
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    for _ in range(PREPARED + 1):
        level = connection.execute("SELECT current_setting('transaction_isolation') WHERE %s", (True,))
        assert level.fetchall() == [("serializable",)]
        psycopg.Connection.commit(connection)
    assert connection._prepared._names


@pytest.mark.parametrize("threshold", [5, None], ids=["prepared", "through a pooler"])
def test_the_last_statement_is_sent_together_with_the_commit(
    connection: JobConnection, monkeypatch: pytest.MonkeyPatch, threshold: int | None
) -> None:
    connection.prepare_threshold = threshold
    for number in range(PREPARED):
        connection.execute("SELECT")
        execute_and_commit(connection, ADD, (number,))
    sent = begin_commands(connection, monkeypatch)
    connection.execute("SELECT")
    del sent[:]
    execute_and_commit(connection, ADD, (99,))
    assert sent == []
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE
    assert connection.pgconn.pipeline_status == PipelineStatus.OFF
    assert numbers(connection) == [*range(PREPARED), 99]


@pytest.mark.parametrize("times", [1, PREPARED, PREPARED + 1])
def test_a_last_statement_that_fails_commits_nothing(connection: JobConnection, times: int) -> None:
    for number in range(times):
        execute_and_commit(connection, ADD, (number,))
    connection.execute("INSERT INTO numbers VALUES (77)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        execute_and_commit(connection, ADD, (0,))
    assert connection.pgconn.transaction_status == TransactionStatus.INERROR
    connection.rollback()
    assert numbers(connection) == [*range(times)]
    execute_and_commit(connection, ADD, (88,))
    assert numbers(connection) == [*range(times), 88]


@pytest.mark.parametrize("times", [1, PREPARED, PREPARED + 1])
def test_a_commit_that_fails_is_an_error(connection: JobConnection, times: int) -> None:
    with psycopg.connect(connection.info.dsn, password=connection.info.password, autocommit=True) as other:
        other.execute("CREATE TABLE others (number integer REFERENCES numbers DEFERRABLE INITIALLY DEFERRED)")
    for _ in range(times):
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            execute_and_commit(connection, "INSERT INTO others VALUES (%s)", (5,))
        assert connection.pgconn.transaction_status == TransactionStatus.IDLE
    assert connection.execute("SELECT count(*) FROM others").fetchall() == [(0,)]


def test_an_unsupported_psycopg_sends_statement_and_commit_separately(
    connection: JobConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.cursor_factory = psycopg.Cursor
    execute_and_commit(connection, ADD, (1,))
    with pytest.raises(psycopg.errors.UniqueViolation):
        execute_and_commit(connection, ADD, (1,))
    connection.rollback()
    assert numbers(connection) == [1]


def numbers(connection: JobConnection) -> list[int]:
    with psycopg.connect(connection.info.dsn, password=connection.info.password, autocommit=True) as other:
        return [number for (number,) in other.execute("SELECT number FROM numbers ORDER BY number")]

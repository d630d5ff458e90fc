import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from drain import DrainError, StageError, stage, stage_many
from drain.workers import job


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def importable() -> None:
    pass


def of_the_script() -> None:
    pass


of_the_script.__module__ = "__main__"


class WithMethod:
    def method(self) -> None:
        pass

    def __call__(self) -> None:
        pass


@pytest.fixture
def transaction(common_database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(common_database_url) as connection:
        connection.execute("CREATE TEMPORARY TABLE of_the_application (id integer)")
        yield connection
        connection.rollback()


def refuses(connection: psycopg.Connection, call: Callable[[], object]) -> str:
    """Text with which `call` is refused; the transaction goes on as if it had not been made."""
    with pytest.raises(StageError) as caught:
        call()
    assert connection.info.transaction_status == TransactionStatus.INTRANS
    connection.execute("INSERT INTO of_the_application VALUES (1)")
    staged = connection.execute("SELECT FROM staged_jobs")
    assert staged.rowcount == 0
    assert "\n" not in str(caught.value)
    return str(caught.value)


BAD_ARGUMENTS = [
    pytest.param((object(),), id="an object"),
    pytest.param((float("nan"),), id="not a number"),
    pytest.param((float("inf"),), id="infinity"),
    pytest.param(({(1, 2): 3},), id="an object whose key is a tuple"),
    pytest.param(nested(100_000), id="nesting that has no end"),
    pytest.param(("nul \x00",), id="a NUL, which PostgreSQL cannot store"),
    pytest.param(("lone \ud800",), id="half a character, which PostgreSQL cannot store"),
    pytest.param(({"key \x00": 1},), id="a NUL in a key"),
]


@pytest.mark.parametrize("args", BAD_ARGUMENTS)
def test_arguments_that_are_not_json_are_refused(transaction: psycopg.Connection, args: Any) -> None:
    assert "JSON" in refuses(transaction, lambda: stage(transaction, "m.f", args))
    assert "JSON" in refuses(transaction, lambda: stage(transaction, "m.f", kwargs={"a": args}))
    assert "JSON" in refuses(transaction, lambda: stage(transaction, "m.f", context={"a": args}))
    assert "JSON" in refuses(transaction, lambda: stage_many(transaction, "m.f", [args]))
    assert "JSON" in refuses(transaction, lambda: stage_many(transaction, "m.f", [{"a": args}]))


@pytest.mark.parametrize("args", ["text", b"bytes", 5, {1: 2}, {1, 2}, None], ids=repr)
def test_arguments_that_are_not_a_list_are_refused(transaction: psycopg.Connection, args: Any) -> None:
    assert "list or tuple" in refuses(transaction, lambda: stage(transaction, "m.f", args))


@pytest.mark.parametrize("arguments", ["text", [5], ["text"], {"a": 1}], ids=repr)
def test_batch_arguments_that_are_not_lists_or_objects_are_refused(
    transaction: psycopg.Connection, arguments: Any
) -> None:
    assert "list or tuple" in refuses(transaction, lambda: stage_many(transaction, "m.f", arguments))


@pytest.mark.parametrize("kwargs", [[1], "text", 5], ids=repr)
def test_keyword_arguments_that_are_not_a_mapping_are_refused(
    transaction: psycopg.Connection, kwargs: Any
) -> None:
    refuses(transaction, lambda: stage(transaction, "m.f", (), kwargs))


def test_a_time_without_a_zone_is_refused(transaction: psycopg.Connection) -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001  (the point of the test)

    assert "run_at" in refuses(transaction, lambda: stage(transaction, "m.f", run_at=naive))
    assert "expires_at" in refuses(transaction, lambda: stage(transaction, "m.f", expires_at=naive))
    assert "run_at" in refuses(transaction, lambda: stage_many(transaction, "m.f", [()], run_at=naive))


HALF = "half a character \ud800"
# Each with a word of the reason.
BAD_OPTIONS = [
    *(("run_at", value, "datetime") for value in ("2030-01-01", 1900000000, date(2030, 1, 1), True)),
    *(("expires_at", value, "datetime") for value in ("tomorrow\n", 1.5, timedelta(days=1))),
    *((name, value, "string") for name in ("queue", "tag") for value in (b"mail", 5, ["mail"], object)),
    *((name, value, "cannot store") for name in ("queue", "tag") for value in (HALF, "nul \0", "\udcff")),
    *(
        (name, value, "whole number")
        for name in ("priority", "max_attempts", "timeout_seconds")
        for value in (True, 1.0, 1.5, "5", Decimal(5), float("nan"), timedelta(seconds=5))
    ),
    *(
        (name, value, "must lie between")
        for name in ("priority", "max_attempts", "timeout_seconds")
        for value in (2**31, -(2**31) - 1, 10**30)
    ),
    ("context", {"a": HALF}, "JSON"),
    ("context", {"a\0": 1}, "JSON"),
    *(("context", value, "mapping") for value in ("text", ["a"], 5, True)),
]


@pytest.mark.parametrize(("name", "value", "reason"), BAD_OPTIONS, ids=ascii)
def test_an_option_that_cannot_be_stored_is_named_in_one_line(
    transaction: psycopg.Connection, name: str, value: Any, reason: str
) -> None:
    options: dict[str, Any] = {name: value}

    for text in (
        refuses(transaction, lambda: stage(transaction, "m.f", **options)),
        refuses(transaction, lambda: stage_many(transaction, "m.f", [()], **options)),
    ):
        assert name in text
        assert reason in text
        assert text.isprintable()


@contextmanager
def registered(function: Callable[..., Any], **options: Any) -> Iterator[Any]:
    """The function as a job, for as long as the block runs."""
    made = job(**options)(function)
    try:
        yield made
    finally:
        sys.modules[type(made).__module__]._jobs.pop(made.job_name)


@pytest.mark.parametrize("name", [HALF, "nul \0"], ids=ascii)
def test_a_name_that_cannot_be_stored_is_refused(transaction: psycopg.Connection, name: str) -> None:
    with registered(importable, name=name) as function:
        for call in (
            lambda: stage(transaction, name),
            lambda: stage_many(transaction, name, [()]),
            lambda: function.stage(transaction),
            lambda: function.stage_many(transaction, [()]),
        ):
            assert "job contains a NUL or lone surrogate" in refuses(transaction, call)


def test_a_registered_job_is_checked_in_the_same_way(transaction: psycopg.Connection) -> None:
    with registered(importable) as function:
        assert "arguments" in refuses(transaction, lambda: function.stage(transaction, HALF))
        assert "keyword" in refuses(transaction, lambda: function.stage(transaction, a=HALF))


@pytest.mark.parametrize("arguments", [None, 5, object()], ids=["nothing", "a number", "an object"])
def test_batch_arguments_that_are_not_a_list_are_refused(
    transaction: psycopg.Connection, arguments: Any
) -> None:
    refuses(transaction, lambda: stage_many(transaction, "m.f", arguments))


class Lines:
    def __repr__(self) -> str:
        return "several\nlines \x1b[31m"


def test_a_refusal_is_always_one_line(transaction: psycopg.Connection) -> None:
    texts = [
        refuses(transaction, lambda: stage(transaction, "m.f", Lines())),  # type: ignore[arg-type]
        refuses(transaction, lambda: stage(transaction, partial(print, Lines()))),
        refuses(transaction, lambda: stage(transaction, "m.f", [], Lines())),  # type: ignore[arg-type]
    ]

    assert all(text.isprintable() for text in texts)


class Queue(StrEnum):
    MAIL = "mail"


class Priority(IntEnum):
    LATE = 7


def test_members_of_an_enum_are_staged_by_their_values(transaction: psycopg.Connection) -> None:
    stage(transaction, "m.f", queue=Queue.MAIL, tag=Queue.MAIL, priority=Priority.LATE)

    rows = transaction.execute("SELECT queue, tag, priority FROM staged_jobs").fetchall()
    assert rows == [("mail", "mail", 7)]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(lambda: None, id="a lambda"),
        pytest.param(partial(importable), id="a partial function"),
        pytest.param(WithMethod(), id="a callable object"),
        pytest.param(42, id="a number"),
        pytest.param(None, id="nothing"),
    ],
)
def test_a_job_that_no_worker_could_import_is_refused(transaction: psycopg.Connection, given: Any) -> None:
    refuses(transaction, lambda: stage(transaction, given))
    refuses(transaction, lambda: stage_many(transaction, given, [()]))


def test_a_function_inside_a_function_is_refused(transaction: psycopg.Connection) -> None:
    def inner() -> None:
        pass

    refuses(transaction, lambda: stage(transaction, inner))


def test_a_function_of_the_script_that_is_run_is_refused(
    transaction: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)

    assert "the script" in refuses(transaction, lambda: stage(transaction, of_the_script))


def test_a_function_of_a_module_is_staged_under_its_dotted_name(transaction: psycopg.Connection) -> None:
    stage(transaction, importable)

    rows = transaction.execute("SELECT job_name FROM staged_jobs").fetchall()
    assert rows == [(f"{__name__}.importable",)]


@pytest.mark.parametrize(
    "connection", [None, object(), "postgresql://localhost/shop"], ids=["nothing", "an object", "a URL"]
)
def test_an_object_that_is_not_a_connection_is_refused(connection: Any) -> None:
    with pytest.raises(StageError, match="cannot work on a"):
        stage(connection, "m.f")


def test_a_refusal_is_both_a_value_error_and_a_drain_error() -> None:
    assert issubclass(StageError, ValueError)
    assert issubclass(StageError, DrainError)


def fails(*_: object) -> str:
    raise LookupError("no such\norder")


BAD_KEYS: list[tuple[str, dict[str, Any]]] = [
    ("key must be a string of 1 to 255 characters, not 256 characters", {"key": "x" * 256}),
    ("key must be a string of 1 to 255 characters, not an empty one", {"key": ""}),
    ("key must be a string or a whole number, not a float", {"key": 1.5}),
    ("key must be a string or a whole number, not a bool", {"key": True}),
    ("key must be a string or a whole number, not a list", {"key": lambda *_: [1]}),
    ("NUL", {"key": "a\0"}),
    ("unique_key must be a string of 1 to 255 characters, not 256 characters", {"unique_key": "x" * 256}),
    ("unique_key must be a string of 1 to 255 characters, not an empty one", {"unique_key": lambda *_: ""}),
    ("the key cannot be computed from the arguments (LookupError: no such)", {"key": fails}),
    ("keep must be 'first' or 'last', not 'newest'", {"unique_key": "a", "keep": "newest"}),
    ("keep needs a unique_key", {"keep": "last"}),
    ("quiet needs a unique_key", {"quiet": timedelta(1)}),
    (
        "quiet needs a unique_key for these arguments",
        {"quiet": timedelta(1), "unique_key": lambda *_: None},
    ),
    ("quiet must be above 0 and at most 365 days, not 0:00:00", {"unique_key": "a", "quiet": timedelta()}),
    ("quiet must be above 0 and at most 365 days", {"unique_key": "a", "quiet": timedelta(366)}),
    ("quiet must be a timedelta", {"unique_key": "a", "quiet": 30}),
]


@pytest.mark.parametrize(("text", "options"), BAD_KEYS)
def test_invalid_keys_are_refused_before_anything_is_sent(
    transaction: psycopg.Connection, text: str, options: dict[str, Any]
) -> None:
    assert text in refuses(transaction, lambda: stage(transaction, "m.f", [1], **options))
    assert text in refuses(transaction, lambda: stage_many(transaction, "m.f", [[1]], **options))


BAD_IDEMPOTENCY: list[tuple[str, dict[str, Any]]] = [
    ("idempotency_key must be a string of 1 to 255 characters, not an empty one", {"idempotency_key": ""}),
    ("idempotency_key must be a string of 1 to 255 characters, not 256", {"idempotency_key": "x" * 256}),
    ("idempotency_key must be a string, not a int", {"idempotency_key": 9}),
    ("idempotency_period needs an idempotency_key", {"idempotency_period": timedelta(1)}),
    ("idempotency_period must be a timedelta", {"idempotency_key": "a", "idempotency_period": 7}),
    ("above 0 and at most 3650 days", {"idempotency_key": "a", "idempotency_period": timedelta()}),
]


@pytest.mark.parametrize(("text", "options"), BAD_IDEMPOTENCY)
def test_invalid_idempotency_keys_are_refused_before_anything_is_sent(
    transaction: psycopg.Connection, text: str, options: dict[str, Any]
) -> None:
    assert text in refuses(transaction, lambda: stage(transaction, "m.f", [1], **options))

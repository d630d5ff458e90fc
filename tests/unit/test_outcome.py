"""Outcome of an attempt: its error as texts that PostgreSQL can store and people can read."""

from typing import TypeVar

import pytest

from drain.jobs.options import JobOptions
from drain.workers.execution.outcome import (
    Deferred,
    Failed,
    GaveUp,
    Lost,
    Outcome,
    Unreadable,
    describe,
    in_ascii,
)

OPTIONS = JobOptions(retry_base_seconds=2, retry_cap_seconds=3600)
E = TypeVar("E", bound=BaseException)


def test_an_error_is_described_by_type_message_and_traceback() -> None:
    described = describe(raised(ValueError("no such order")))
    assert described.keys() == {"type", "message", "traceback"}
    assert (described["type"], described["message"]) == ("ValueError", "no such order")
    assert described["traceback"].startswith("Traceback (most recent call last):\n")
    assert "in raised\n" in described["traceback"]
    assert described["traceback"].endswith("ValueError: no such order\n")


def test_an_errors_type_includes_its_module_unless_builtin() -> None:
    assert describe(Outer.InnerError())["type"] == f"{__name__}.Outer.InnerError"
    assert describe(SystemExit(3))["type"] == "SystemExit"


def test_the_description_includes_the_cause() -> None:
    error = raised(KeyError("order"))
    error.__cause__ = raised(OSError("no disk"))
    assert "OSError: no disk" in describe(error)["traceback"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("before\x00after", "before\ufffdafter"),
        ("\ud800 alone", "? alone"),
        ("alone \udfff\x00", "alone ?\ufffd"),
        ("żółw 🐢 \t\n", "żółw 🐢 \t\n"),
    ],
)
def test_only_characters_that_postgresql_cannot_store_are_replaced(text: str, told: str) -> None:
    described = describe(raised(ValueError(text)))
    assert described["message"] == told
    assert told in described["traceback"]
    storable(described)


def test_a_message_of_megabytes_keeps_its_beginning_and_its_end() -> None:
    described = describe(raised(ValueError("begin" + "x" * 3_000_000 + "end")))
    assert len(described["message"]) < 5_000
    assert len(described["traceback"]) < 40_000
    assert described["message"].startswith("begin")
    assert described["message"].endswith("end")
    assert f"{3_000_008 - 4_000} characters left out" in described["message"]
    assert described["traceback"].startswith("Traceback")
    storable(described)


@pytest.mark.parametrize("inner", [RuntimeError("no text"), RecursionError(), SystemExit(1)], ids=repr)
def test_an_unprintable_error_is_still_described(inner: BaseException) -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise inner

    described = describe(raised(UnprintableError()))
    assert described["type"].endswith("UnprintableError")
    assert type(inner).__name__ in described["message"]
    assert "in raised" in described["traceback"]


def test_a_syntax_error_with_an_invalid_location_is_still_described() -> None:
    described = describe(raised(SyntaxError("bad", ("f.py", 1, "abc", "text"))))  # type: ignore[arg-type]
    assert (described["type"], described["message"]) == ("SyntaxError", "bad (f.py, line 1)")
    assert "in raised" in described["traceback"]
    assert "TypeError" in described["traceback"]


def test_an_error_with_unreadable_notes_is_still_described() -> None:
    class UnreadableError(Exception):
        @property
        def __notes__(self) -> list[str]:  # type: ignore[override]
            raise RuntimeError("no notes")

    described = describe(raised(UnreadableError("why")))
    assert described["message"] == "why"
    assert "in raised" in described["traceback"]


def test_an_error_with_an_unreadable_class_name_is_still_described() -> None:
    class Nameless(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise RuntimeError("no module")

    class NamelessError(Exception, metaclass=Nameless):
        pass

    described = describe(raised(NamelessError("why")))
    assert described["message"] == "why"
    assert "RuntimeError" in described["type"]


ERROR = {"type": "Größe", "message": "客户 a", "traceback": "plain"}
IN_ASCII = {"type": "Gr\\xf6\\xdfe", "message": "\\u5ba2\\u6237 a", "traceback": "plain"}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Failed(ERROR, OPTIONS), Failed(IN_ASCII, OPTIONS)),
        (Lost(ERROR, OPTIONS), Lost(IN_ASCII, OPTIONS)),
        (GaveUp(ERROR), GaveUp(IN_ASCII)),
        (Unreadable("größe"), Unreadable("gr\\xf6\\xdfe")),
        (Failed(ERROR, OPTIONS, after=5.0), Failed(IN_ASCII, OPTIONS, after=5.0)),
        (Deferred(3.0), Deferred(3.0)),
    ],
)
def test_any_outcome_can_be_converted_to_ascii(outcome: Outcome, expected: Outcome) -> None:
    assert in_ascii(outcome) == expected


def test_an_errors_line_is_its_type_and_the_messages_first_line() -> None:
    assert Failed(describe(ValueError("first\nsecond"))).line == "ValueError: first"
    assert Failed(describe(ValueError())).line == "ValueError"


class Outer:
    class InnerError(Exception):
        pass


def raised(error: E) -> E:
    """The same error, with a traceback."""
    try:
        raise error
    except type(error):
        return error


def storable(described: dict[str, str]) -> None:
    for text in described.values():
        assert "\x00" not in text
        text.encode("utf-8")

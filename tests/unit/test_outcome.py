"""What becomes of an attempt: how an error is told, and how long the next attempt waits."""

import random
from typing import TypeVar

import pytest

from drain.jobs.options import JobOptions
from workers.execution.outcome import (
    Deferred,
    Failed,
    GaveUp,
    Lost,
    Outcome,
    Unreadable,
    describe,
    in_ascii,
    wait_seconds,
)

OPTIONS = JobOptions(retry_base_seconds=2, retry_cap_seconds=3600)
E = TypeVar("E", bound=BaseException)
BOUNDS = {1: (1, 2), 2: (2, 4), 3: (4, 8), 10: (512, 1024), 12: (1800, 3600), 13: (1800, 3600)}
HUGE = [64, 65, 1_000, 1_100, 10**9, 10**18]


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)


@pytest.mark.parametrize(("attempts", "bounds"), BOUNDS.items())
def test_the_wait_lies_between_half_of_the_step_and_all_of_it(attempts: int, bounds: tuple[int, int]) -> None:
    waits = [wait_seconds(attempts, OPTIONS) for _ in range(500)]
    lowest, highest = bounds
    assert lowest <= min(waits) <= max(waits) <= highest


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    waits = {wait_seconds(5, OPTIONS) for _ in range(100)}
    assert len(waits) > 90
    assert max(waits) - min(waits) > 0.25 * 32


@pytest.mark.usefixtures("no_jitter")
def test_the_wait_doubles_with_each_failure_until_it_reaches_the_cap() -> None:
    waits = [wait_seconds(attempts, JobOptions(retry_cap_seconds=30)) for attempts in range(1, 8)]
    assert waits == [2, 4, 8, 16, 30, 30, 30]


@pytest.mark.usefixtures("no_jitter")
@pytest.mark.parametrize("attempts", HUGE)
def test_the_wait_is_the_cap_however_often_the_job_failed(attempts: int) -> None:
    assert wait_seconds(attempts, OPTIONS) == 3600


@pytest.mark.usefixtures("no_jitter")
def test_a_name_that_nobody_registered_waits_as_the_defaults_say() -> None:
    assert [wait_seconds(attempts, None) for attempts in (1, 2, 100)] == [2, 4, 3600]


@pytest.mark.parametrize("attempts", [*HUGE, 0])
def test_the_longest_policy_that_a_registration_takes_overflows_nothing(attempts: int) -> None:
    year = 365 * 24 * 3600
    for base in (year, 1e-300):
        options = JobOptions(retry_base_seconds=base, retry_cap_seconds=year)
        assert 0 <= wait_seconds(attempts, options) <= year


def test_an_error_is_told_by_type_message_and_traceback() -> None:
    described = describe(raised(ValueError("no such order")))
    assert described.keys() == {"type", "message", "traceback"}
    assert (described["type"], described["message"]) == ("ValueError", "no such order")
    assert described["traceback"].startswith("Traceback (most recent call last):\n")
    assert "in raised\n" in described["traceback"]
    assert described["traceback"].endswith("ValueError: no such order\n")


def test_the_type_of_an_error_names_its_module_unless_that_is_builtins() -> None:
    assert describe(Outer.InnerError())["type"] == f"{__name__}.Outer.InnerError"
    assert describe(SystemExit(3))["type"] == "SystemExit"


def test_the_cause_of_an_error_is_told_too() -> None:
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
def test_what_postgresql_cannot_store_is_replaced_and_nothing_else(text: str, told: str) -> None:
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
def test_an_error_that_cannot_be_printed_is_told_all_the_same(inner: BaseException) -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise inner

    described = describe(raised(UnprintableError()))
    assert described["type"].endswith("UnprintableError")
    assert type(inner).__name__ in described["message"]
    assert "in raised" in described["traceback"]


def test_a_syntax_error_whose_place_is_no_place_is_told_all_the_same() -> None:
    described = describe(raised(SyntaxError("bad", ("f.py", 1, "abc", "text"))))  # type: ignore[arg-type]
    assert (described["type"], described["message"]) == ("SyntaxError", "bad (f.py, line 1)")
    assert "in raised" in described["traceback"]
    assert "TypeError" in described["traceback"]


def test_an_error_whose_notes_cannot_be_read_is_told_all_the_same() -> None:
    class UnreadableError(Exception):
        @property
        def __notes__(self) -> list[str]:  # type: ignore[override]
            raise RuntimeError("no notes")

    described = describe(raised(UnreadableError("why")))
    assert described["message"] == "why"
    assert "in raised" in described["traceback"]


def test_an_error_whose_class_cannot_say_its_name_is_told_all_the_same() -> None:
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
        (Deferred(3.0), Deferred(3.0)),
    ],
)
def test_any_outcome_can_be_told_in_ascii(outcome: Outcome, expected: Outcome) -> None:
    assert in_ascii(outcome) == expected


def test_an_error_on_one_line_is_its_type_and_the_first_line_of_its_message() -> None:
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

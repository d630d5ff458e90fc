import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from drain import log
from drain.formatting import visible

COMMANDS = {
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
}
# Default_Ignorable_Code_Point of Unicode 16, and the marks of annotations.
DRAW_NOTHING = {
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810)),
    *(*range(0x200B, 0x2010), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0),
    *(*range(0xFFF0, 0xFFFC), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
}
HIDDEN = COMMANDS | DRAW_NOTHING


@given(st.text(st.characters(categories=None) | st.sampled_from(list(map(chr, HIDDEN)))))
def test_only_control_and_invisible_characters_are_escaped(
    text: str,
) -> None:
    harmless = "".join(character for character in text if ord(character) not in HIDDEN)

    assert not HIDDEN & set(map(ord, visible(text)))
    assert visible(harmless) == harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x9b\x7f", r"\x9b\x7f"),
        ("\u202eexe", r"\u202eexe"),
        ("\ud800", r"\ud800"),
        ("ad\u200bmin \u200f\ufeff", r"ad\u200bmin \u200f\ufeff"),
        ("a\U000e0041", r"a\U000e0041"),
        ("größe 日本 שלום 👍🏽", "größe 日本 שלום 👍🏽"),
    ],
)
def test_control_and_invisible_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_text_of_several_lines_keeps_them() -> None:
    assert visible("a\n\tb\r\x1b", lines=True) == "a\n\tb\\r\\x1b"


def record(message: str, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    raised = (type(error), error, None) if error is not None else None
    made = logging.LogRecord("drain", logging.INFO, "file", 1, message, (), raised)
    made.__dict__.update(extra)
    return made


def test_a_plain_log_line_is_escaped_and_cannot_forge_other_lines() -> None:
    formatter = log.Lines("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    text = formatter.format(record("a\x1b[2J\n12:00:00 INFO all is well", ValueError("\x9b31m\nforged")))

    first, *others = text.splitlines()
    assert first.endswith(r"INFO a\x1b[2J")
    assert others == ["  12:00:00 INFO all is well", r"  ValueError: \x9b31m", "  forged"]


def test_a_plain_log_line_includes_the_traceback_of_a_failed_job() -> None:
    formatter = log.Lines("%(levelname)s %(message)s")

    text = formatter.format(record("job 7 failed", traceback="Traceback:\n  File x\x1b"))

    assert text.splitlines() == ["INFO job 7 failed", "  Traceback:", r"    File x\x1b"]


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value", [Hostile(), {(1, 2): 3}, float("nan")], ids=["no text", "no key", "no number"]
)
def test_a_json_log_line_stays_valid_whatever_an_event_adds(value: Any) -> None:
    line = json.loads(log.JsonLines().format(record("failed", args_of_job=value)), parse_constant=pytest.fail)

    assert line["message"] == "failed"


def test_log_lines_on_a_terminal_are_plain_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    try:
        log.configure()
        logging.getLogger("drain").warning("job %s", "\x1b[31m")
        assert capsys.readouterr().err.endswith("WARNING job \\x1b[31m\n")
    finally:
        root.handlers[:], root.level, logging.raiseExceptions = before

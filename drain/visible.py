"""Text of other people on a terminal: shown, and never obeyed."""

from __future__ import annotations

import re

# Controls of a terminal (C0, DEL, C1); marks that turn the direction of the text behind them; separators at which
# some programs begin a line; and halves of characters, which no encoding can write.
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COMMANDS_BUT_LINES = re.compile(_COMMANDS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def visible(text: str, *, lines: bool = False) -> str:
    r"""Write each character that a terminal would obey as its escape, such as `\x1b` or `\u202e`.

    Args:
        text: Anything: a tag, a name, an error, a traceback.
        lines: Leave newlines and tabs as they are, as a text of several lines needs; otherwise one line comes out.
    """
    return (_COMMANDS_BUT_LINES if lines else _COMMANDS).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()

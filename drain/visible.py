"""Foreign text for people: all of it is seen, and a terminal obeys none of it."""

from __future__ import annotations

import re

# Characters that are not shown as they are: controls of a terminal (C0, DEL, C1); separators that begin a line in
# some programs; surrogates, which no encoding can write; marks that turn the direction of the text behind them.
_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    # And those that draw nothing, by Unicode's Default_Ignorable_Code_Point: with them two names look the same.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u2065\u206a-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_COMMANDS_BUT_LINES = re.compile(_COMMANDS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def visible(text: str, *, lines: bool = False) -> str:
    r"""Replace each character that a terminal would obey, or that draws nothing, by its escape, such as `\x1b`.

    Args:
        text: Any text: a tag, a name, an error, a traceback.
        lines: Keep newlines and tabs, for a text of several lines; otherwise the result is one line.
    """
    return (_COMMANDS_BUT_LINES if lines else _COMMANDS).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()

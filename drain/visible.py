"""Foreign text for a terminal: shown, and never obeyed as commands of the terminal."""

from __future__ import annotations

import re

# Characters that are not shown as they are: controls of a terminal (C0, DEL, C1); marks that turn the direction of the
# text behind them; separators at which some programs begin a line; and surrogates, which no encoding can write.
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COMMANDS_BUT_LINES = re.compile(_COMMANDS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def visible(text: str, *, lines: bool = False) -> str:
    r"""Replace each character that a terminal would obey by its escape, such as `\x1b` or `\u202e`.

    Args:
        text: Any text: a tag, a name, an error, a traceback.
        lines: Keep newlines and tabs, for a text of several lines; otherwise the result is one line.
    """
    return (_COMMANDS_BUT_LINES if lines else _COMMANDS).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()

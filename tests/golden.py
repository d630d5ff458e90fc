"""What commands print, compared with text files in tests/printed, one for each width of the terminal.

`DRAIN_WRITE_PRINTED=1 pytest ...` writes the files instead; read them before you commit them.
"""

import os
from pathlib import Path

PRINTED = Path(__file__).with_name("printed")
WIDTHS = (80, 120)


def assert_printed(name: str, width: int, text: str) -> None:
    """Fail if a line is wider than the terminal, or the text is not that of tests/printed/NAME-WIDTH.txt."""
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    assert not [line for line in text.splitlines() if len(line) > width]
    path = PRINTED / f"{name}-{width}.txt"
    if os.environ.get("DRAIN_WRITE_PRINTED"):
        PRINTED.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")

"""Progress on standard error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from drain.formatting import visible

# Shorter commands show none.
_SHOWN_AFTER_SECONDS = 2.0


@contextmanager
def show() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows each step on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _step: None
        return
    status = console.status("")
    timer = threading.Timer(_SHOWN_AFTER_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda step: status.update(Text(visible(step)))
    finally:
        timer.cancel()
        timer.join()
        status.stop()

"""Children that a job has forked by itself: they must not go on as workers."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End this process if it is not the one that began the job, but a child that the job has forked.

    The child would go on as a second worker, with the connections and the other jobs of the first.
    """
    if os.getpid() == pid:
        return
    code: object = 0
    if error is not None:
        code = error.code if isinstance(error, SystemExit) else 1
        if code is not None and not isinstance(code, int):
            with suppress(Exception):
                sys.stderr.write(f"{code}\n")
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))

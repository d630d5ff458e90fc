"""Children forked by a job, which must not go on as workers."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End this process if it is a child forked by the job.

    It would go on as a second worker, with the first one's connections and jobs.
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

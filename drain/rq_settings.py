"""Settings for RQ's own workers: `rq worker --config drain.rq_settings mail`.

RQ imports this module once, before it forks a process for each job. So the entry point and the modules of DRAIN_JOBS
are imported once as well, and every job finds them there. No connection is opened and no thread is started.

A settings module of your own does the same with `from drain.rq_settings import *`.
"""

from __future__ import annotations

import importlib
import os
import sys

from drain.errors import DrainError


def _settings() -> dict[str, str]:
    try:
        # Imported by name, as RQ does: the drain's own modules know nothing of the workers.
        redis_url = importlib.import_module("drain.workers.entry").preload().redis_url
    except DrainError as error:
        # RQ prints a traceback of every exception but SystemExit.
        sys.exit(f"drain.rq_settings: {error}")
    # RQ reads these variables from the environment if it is given no settings module.
    given = {name: text for name, text in os.environ.items() if name.startswith("REDIS_")}
    return given | ({"REDIS_URL": redis_url} if redis_url else {})


# Each name in upper case is a setting for RQ.
globals().update(_settings())

"""Settings for RQ's own workers: `rq worker --config drain.rq_settings mail`.

RQ imports this module once, before it forks a process for each job. So the entry point and the modules of DRAIN_JOBS
are imported once too, and every job finds them loaded. No connection is opened and no thread is started.

A settings module of your own does the same with `from drain.rq_settings import *`.
"""

from __future__ import annotations

import importlib
import os
import sys

from drain import packages
from drain.errors import DrainError
from drain.wire import ENTRY_POINT


def _settings() -> dict[str, str]:
    try:
        packages.own("workers")
        # Imported by name, as RQ does: the modules of `drain` do not depend on `workers`.
        entry = importlib.import_module(ENTRY_POINT.rpartition(".")[0])
        redis_url = entry.load().redis_url
    except DrainError as error:
        # RQ prints a traceback of every other exception than SystemExit.
        sys.exit(f"drain.rq_settings: {error}")
    # Without a settings module RQ would read these from the environment.
    given = {name: text for name, text in os.environ.items() if name.startswith("REDIS_")}
    return given | ({"REDIS_URL": redis_url} if redis_url else {})


# RQ reads every name in upper case as a setting.
globals().update(_settings())

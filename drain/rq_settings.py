"""Settings for RQ's own workers: `rq worker --config drain.rq_settings mail`.

RQ imports this, and so the entry point and the modules of DRAIN_JOBS, before it forks per job. To extend:
`from drain.rq_settings import *`.
"""

from __future__ import annotations

import importlib
import os
import sys

from drain.errors import DrainError


def _settings() -> dict[str, str]:
    try:
        # By name: `drain` must not depend on the workers.
        redis_url = importlib.import_module("drain.workers.entry").preload().redis_url
    except DrainError as error:
        # RQ prints a traceback for anything but SystemExit.
        sys.exit(f"drain.rq_settings: {error}")
    # RQ reads these only without a settings module.
    given = {name: text for name, text in os.environ.items() if name.startswith("REDIS_")}
    return given | ({"REDIS_URL": redis_url} if redis_url else {})


# RQ reads upper-case names.
globals().update(_settings())

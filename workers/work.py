"""`drain work`: the door of the workers. What cannot work is refused here, before any process is started."""

from __future__ import annotations

import os

from drain.config import VARIABLES, Settings
from drain.wire import Wire
from workers import registry
from workers.completion import load_sessions
from workers.options import WorkOptions
from workers.plain_worker import check
from workers.supervisor import Supervisor


def work(settings: Settings, options: WorkOptions) -> None:
    """Work on the queues, the first of them first, until a signal comes.

    SIGTERM and SIGINT let what runs end within its time of grace, and give back the rest at once; a plain RQ job is
    waited for without bound. A second one interrupts what runs, which counts as a failed attempt. A Redis or a
    PostgreSQL that goes away is waited for.

    Args:
        settings: Where, and which job modules.
        options: How.

    Raises:
        ConfigError: An option for RQ's worker names what cannot be imported.
        JobModuleError: A job module does not import.
        UnavailableError: Redis cannot be reached at the start, or went away in a burst.
    """
    registry.load(settings.jobs)
    check(options.plain)
    load_sessions()
    wire = Wire(settings.required_redis_url, settings.namespace)
    try:
        wire.ping()
    finally:
        wire.close()
    # The fixed entry point reads the environment, as it must in a worker that RQ itself started.
    os.environ[VARIABLES["database_url"]] = settings.database_url
    os.environ[VARIABLES["jobs"]] = ",".join(settings.jobs)
    Supervisor(settings, options).run()

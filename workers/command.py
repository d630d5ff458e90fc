"""`drain work`: the door of the workers. What cannot work is refused here, before any process is started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from drain.config import VARIABLES, Settings
from drain.jobs import registry
from workers import stores
from workers.context.transaction import load_sessions
from workers.options import WorkOptions
from workers.plain.rq_process import check
from workers.supervisor.supervisor import Supervisor


def work(settings: Settings, options: WorkOptions, look: Callable[[], None] = lambda: None) -> None:
    """Work on the queues, the first of them first, until a signal comes.

    SIGTERM and SIGINT let what runs end within its time of grace, and give back the rest at once; a plain RQ job is
    waited for without bound. A second one interrupts what runs, which does not count as an attempt. A Redis or a
    PostgreSQL that is away, at the start or later, is waited for.

    Args:
        settings: Where, and which job modules.
        options: How.
        look: Called once both stores have answered, before any process is started.

    Raises:
        ConfigError: An option for RQ's worker names what cannot be imported.
        JobModuleError: A job module does not import.
        ConfigError, SchemaError: A setting, or the database, cannot be used as it is.
        UnavailableError: A store is away in a burst.
    """
    registry.load(settings.jobs)
    check(options.plain)
    load_sessions()
    supervisor = Supervisor(settings, options)
    health = supervisor.health
    try:
        if options.metrics_port:
            health.serve(options.metrics_host, options.metrics_port)
        if options.burst:
            stores.ask_once(settings)
        else:
            with _ending_at_once():
                stores.wait_for(settings, health.wait)
        look()
        _run(supervisor, settings)
    finally:
        health.close()


def _run(supervisor: Supervisor, settings: Settings) -> None:
    # The fixed entry point reads the environment, as it must in a worker that RQ itself started.
    os.environ[VARIABLES["database_url"]] = settings.database_url
    os.environ[VARIABLES["jobs"]] = ",".join(settings.jobs)
    supervisor.run()


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the program: nothing is in hand yet."""

    def end(_signal: int, _frame: object) -> None:
        sys.exit(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

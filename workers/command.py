"""`drain work`: settings and options that cannot work are refused here, before any process is started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from drain import urls
from drain.config import VARIABLES, Settings
from drain.jobs import registry
from drain.workers import stores
from drain.workers.context import log_fields
from drain.workers.context.loading import load
from drain.workers.context.transaction import load_sessions
from drain.workers.exits import DONE, STOP_SIGNALS
from drain.workers.options import WorkOptions
from drain.workers.process import plain_jobs
from drain.workers.supervisor.supervisor import Supervisor


def work(settings: Settings, options: WorkOptions, look: Callable[[], None] = lambda: None) -> None:
    """Work on the queues until a signal comes.

    SIGTERM and SIGINT give running jobs their grace period, and other jobs back at once; a plain RQ job is waited for
    however long it takes. A second signal interrupts running jobs, whose attempts do not count. While Redis or
    PostgreSQL is away, at the start or later, `drain work` waits.

    Args:
        settings: URLs of the stores, and the job modules.
        options: Options of the command line.
        look: Called once both stores have answered, before any process is started.

    Raises:
        ConfigError: An option for RQ's worker, or what runs plain jobs, cannot be imported.
        JobModuleError: A job module does not import.
        ConfigError, SchemaError: A setting, or the database, cannot be used as it is.
        UnavailableError: A store is away in a burst.
    """
    log_fields.install()
    registry.load(settings.jobs)
    plain_jobs.handler().check_options(options.plain)
    load_sessions()
    # A process that is forked while a thread of its parent imports this, for its first annotation, would wait for ever.
    load("msgspec")
    supervisor = Supervisor(settings, options)
    health = supervisor.health
    try:
        if options.metrics_port:
            health.serve(options.metrics_host, options.metrics_port)
        if options.burst:
            stores.ask_once(settings)
        else:
            with _exiting_at_once():
                stores.wait_for(settings, health.report_waiting)
        look()
        _run(supervisor, settings)
    finally:
        health.close()


def _run(supervisor: Supervisor, settings: Settings) -> None:
    # The job's entry point reads the environment, as it must in a worker that RQ itself has started.
    # Jobs open connections of their own with this URL.
    os.environ[VARIABLES["database_url"]] = urls.out_of_schema(settings.database_url)
    os.environ[VARIABLES["schema"]] = settings.schema
    os.environ[VARIABLES["jobs"]] = ",".join(settings.jobs)
    supervisor.run()


@contextmanager
def _exiting_at_once() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the program at once: no job is claimed yet."""

    def end(_signal: int, _frame: object) -> None:
        sys.exit(DONE)

    before = {number: signal.signal(number, end) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""`drain work`: checks settings and options before any process starts."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep

from drain import urls
from drain.config import VARIABLES, Settings
from drain.errors import UnavailableError
from drain.jobs import registry
from drain.workers import stores
from drain.workers.context import log_fields
from drain.workers.context.loading import load
from drain.workers.context.transaction import load_sessions
from drain.workers.exits import DONE, STOP_SIGNALS
from drain.workers.options import WorkOptions
from drain.workers.process import plain_jobs
from drain.workers.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.25


def work(settings: Settings, options: WorkOptions, look: Callable[[], None] = lambda: None) -> None:
    """Work on the queues until a signal.

    SIGTERM and SIGINT start the grace period of running jobs and return others; plain RQ jobs are awaited. A second
    signal interrupts running jobs, whose attempts do not count. Outages are waited out.

    Args:
        look: Called once both stores have answered, before any process starts.

    Raises:
        ConfigError: A setting is invalid, or something for plain jobs cannot be imported.
        UnavailableError: A store is unavailable in a burst.
    """
    log_fields.install()
    registry.load(settings.jobs)
    plain_jobs.handler().check_options(options.plain)
    load_sessions()
    # A child forked while a thread imports this would wait forever.
    load("msgspec")
    supervisor = Supervisor(settings, options)
    health = supervisor.health
    try:
        if options.metrics_port:
            health.serve(options.metrics_host, options.metrics_port)
        if options.burst:
            stores.ask_once(settings)
            look()
        else:
            with _exiting_at_once():
                _look_once_available(settings, health.report_waiting, look)
        _run(supervisor, settings)
    finally:
        health.close()


def _look_once_available(
    settings: Settings, waits: Callable[[str | None], None], look: Callable[[], None]
) -> None:
    while True:
        stores.wait_for(settings, waits)
        try:
            look()
        except UnavailableError as error:
            # It has gone away in between.
            log.warning("%s; waiting for it", error, extra={"event": "down"})
            sleep(_PAUSE_SECONDS)
        else:
            return


def _run(supervisor: Supervisor, settings: Settings) -> None:
    # For the job's entry point, and jobs that open connections.
    os.environ[VARIABLES["database_url"]] = urls.out_of_schema(settings.database_url)
    os.environ[VARIABLES["schema"]] = settings.schema
    os.environ[VARIABLES["jobs"]] = ",".join(settings.jobs)
    supervisor.run()


@contextmanager
def _exiting_at_once() -> Iterator[None]:

    def end(_signal: int, _frame: object) -> None:
        sys.exit(DONE)

    before = {number: signal.signal(number, end) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

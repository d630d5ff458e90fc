"""Handler of the entry point `drain.plain_jobs`; see `drain.workers.process.plain_jobs`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from rq.serializers import resolve_serializer
from rq.utils import import_attribute, import_job_class

from drain.contrib.plain.jobs import RQJobs
from drain.contrib.plain.rq_process import RQProcess
from drain.errors import ConfigError
from drain.wire import Consumer
from drain.workers.handover.journal import Journal
from drain.workers.options import PlainOptions, WorkOptions
from drain.workers.process.inbox import Inbox
from drain.workers.process.plain_jobs import NoPlainJobs, PlainJobs
from drain.workers.process.shutdown import Shutdown


def check_options(options: PlainOptions) -> None:
    """Import serializer, job class and handlers before any process starts; ConfigError if unsuitable."""
    paths: list[tuple[str, str | None, Callable[[str], Any]]] = [
        ("--serializer", options.serializer, resolve_serializer),
        ("--job-class", options.job_class, import_job_class),
        *[("--exception-handler", path, _import_callable) for path in options.exception_handlers],
    ]
    for option, path, load in paths:
        if path:
            try:
                load(path)
            # An import may raise anything.
            except Exception as error:
                raise ConfigError(f"{option} {path!r}: {_one_line(error)}") from error


def start(
    redis_url: str, only_tracked: Collection[str], options: WorkOptions, name: str
) -> Callable[[Inbox, Shutdown, Journal, Consumer], PlainJobs]:
    """Fork the RQ process if plain jobs run in any queue; call before starting threads.

    Args:
        only_tracked: Queues without plain jobs.
        name: Of RQ's worker.
    """
    queues = [queue for queue in options.queues if queue not in only_tracked]
    if options.plain.refuses or not queues:
        return NoPlainJobs
    return partial(RQJobs, RQProcess(redis_url, queues, options, name))


def _import_callable(path: str) -> Any:
    handler = import_attribute(path)
    if not callable(handler):
        raise TypeError("it cannot be called")
    return handler


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]

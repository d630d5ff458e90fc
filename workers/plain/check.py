"""The check of the options for plain RQ jobs: everything that they name is imported before any process is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rq.serializers import resolve_serializer
from rq.utils import import_attribute, import_job_class

from drain.errors import ConfigError
from drain.workers.options import PlainOptions


def check_options(options: PlainOptions) -> None:
    """Import the serializer, the job class and the exception handlers.

    Raises:
        ConfigError: One of them cannot be imported, or is of another kind.
    """
    paths: list[tuple[str, str | None, Callable[[str], Any]]] = [
        ("--serializer", options.serializer, resolve_serializer),
        ("--job-class", options.job_class, import_job_class),
        *[("--exception-handler", path, _import_callable) for path in options.exception_handlers],
    ]
    for option, path, load in paths:
        if path:
            try:
                load(path)
            # A module may raise anything as it is imported.
            except Exception as error:
                raise ConfigError(f"{option} {path!r}: {_one_line(error)}") from error


def _import_callable(path: str) -> Any:
    handler = import_attribute(path)
    if not callable(handler):
        raise TypeError("it cannot be called")
    return handler


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]

"""Worker process of `drain dev`."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drain.errors import JobModuleError
from drain.formatting import count
from drain.jobs import registry
from drain.jobs.registry import Job

IMPORT_FAILED = 3
# For a running job when the worker is replaced.
GRACE_SECONDS = 10
# Before the modules: ask for an example of staging.
WITH_EXAMPLE = "--with-example"


def work_arguments(arguments: Sequence[str]) -> list[str]:
    """Import the modules, and return `drain work` arguments for their queues.

    If an import fails, print why and exit with `IMPORT_FAILED`.
    """
    modules = [name for name in arguments if name != WITH_EXAMPLE]
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        registry.load(modules)
    except JobModuleError as error:
        sys.stdout.write(import_problem(error, here))
        sys.exit(IMPORT_FAILED)
    sys.path.remove(here)
    sys.stdout.write(summary_of_jobs(modules, with_example=WITH_EXAMPLE in arguments))
    return [
        "work",
        *sorted(registry.queues()),
        "--rotate",
        "--jobs",
        ",".join(modules),
        f"--grace-seconds={GRACE_SECONDS}",
        # Logs a line per finished job.
        "--verbose",
    ]


def summary_of_jobs(modules: Sequence[str], *, with_example: bool) -> str:
    """List the jobs, and optionally a command that stages one."""
    jobs = [job for name in registry.names() if (job := registry.find(name))]
    if not jobs:
        return f"no job is registered in {', '.join(modules)}: a job is a function under @job\n"
    named = ", ".join(f"{job.job_name} (queue {job.job_options.queue})" for job in jobs)
    shown = f"{count(len(jobs), 'job')}: {named}\n"
    return shown + (
        f"stage one, in the other shell and this directory:\n{_example(jobs[0])}\n" if with_example else ""
    )


def _example(job: Job[..., Any]) -> str:
    module, name = job.function.__module__, job.function.__qualname__
    given = "".join(f", {_sample(parameter)}" for parameter in _required(job))
    connect = f'import os, psycopg, {module}; c = psycopg.connect(os.environ["DRAIN_DATABASE_URL"])'
    return f"python -c '{connect}; {module}.{name}.stage(c{given}); c.commit()'"


def _required(job: Job[..., Any]) -> list[inspect.Parameter]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(job.function).parameters.values()
    return [
        each for each in parameters if each.kind in positional and each.default is inspect.Parameter.empty
    ]


def _sample(parameter: inspect.Parameter) -> str:
    annotation = getattr(parameter.annotation, "__name__", str(parameter.annotation))
    return {"int": "42", "float": "4.2", "bool": "True"}.get(annotation, f'"{parameter.name}"')


def import_problem(error: JobModuleError, directory: str) -> str:
    """Explain a failed import, such as `shop.py:3: NameError: …`, and show the line."""
    cause = error.__cause__
    if cause is None:
        return f"{error}\n"
    # A syntax error has no frame.
    frames = [
        frame for frame in traceback.extract_tb(cause.__traceback__) if _is_of_application(frame.filename)
    ]
    reason = " ".join(f"{type(cause).__name__}: {cause}".split())
    if isinstance(cause, SyntaxError) and cause.filename:
        place, line, reason = (
            f"{cause.filename}:{cause.lineno}",
            cause.text or "",
            f"{type(cause).__name__}: {cause.msg}",
        )
    elif frames:
        place, line = f"{frames[-1].filename}:{frames[-1].lineno}", frames[-1].line or ""
    else:
        return f"{error}\n"
    shown = f"{place.removeprefix(directory + '/')}: {reason}\n"
    return shown + (f"    {line.strip()}\n" if line.strip() else "")


def _is_of_application(filename: str) -> bool:
    # importlib is frozen, or in a directory of that name; job-drain's frames began the import.
    ours = Path(__file__).parents[2]
    return (
        not filename.startswith("<")
        and "importlib" not in filename
        and not Path(filename).is_relative_to(ours)
    )

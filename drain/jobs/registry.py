"""Registered jobs: `@job` gives a function a name. A worker runs tracked jobs only by the names in this registry."""

from __future__ import annotations

import functools
import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from drain.config import QUEUE_CHARACTERS, QUEUE_NAME
from drain.errors import ConfigError, JobModuleError
from drain.jobs import options as job_options
from drain.jobs.keys import KeyOption
from drain.jobs.options import DEFAULT_QUEUE, ErrorClasses, JobOptions, dotted_name
from drain.jobs.signature import Signature
from drain.jobs.stage_options import StageOptions, check_names
from drain.jobs.stager import Stager
from drain.jobs.timetable import LONGEST_NAME
from drain.tables.limits import DEFAULT_LEASE_SECONDS, DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT_SECONDS, Limits

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = ("name", *(each.name for each in fields(JobOptions)))
_OPTIONS_OF_STAGE = ("priority", "run_at", "expires_at", "tag", "context", "idempotency_key")


class Job(Stager[P], Generic[P, R]):
    """A registered function: still callable as before, and able to stage itself.

    Attributes:
        function: Function as it was written.
        job_name: Name that it is registered under.
        job_options: Options of its jobs.
        runs_in_loop: True for an `async def`: many of its jobs run at once, in the event loop of a worker process.
        signature: What the function takes.
    """

    def __init__(self, function: Callable[P, R], name: str, options: JobOptions) -> None:
        super().__init__(self, {})
        functools.update_wrapper(self, function)
        self.function = function
        self.job_name = name
        self.job_options = options
        self.runs_in_loop = inspect.iscoroutinefunction(function) and not options.isolated
        self.signature = Signature(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    def options(self, **given: Unpack[StageOptions]) -> Stager[P]:
        """Return what stages jobs of this function with options: `send.options(run_in=60).stage(session, 42)`.

        Args:
            given: Options of `drain.stage`.

        Raises:
            TypeError: There is no such option.
        """
        check_names("options()", given)
        return Stager(self, given)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check that the function can be called with these arguments.

        Raises:
            StageError: It cannot; the text says what is missing, or what it does not know.
        """
        self.signature.check(self.job_name, args, kwargs)


_jobs: dict[str, Job[..., Any]] = {}
_DEFAULT_OPTIONS = JobOptions()


@overload
def job(function: Callable[P, R], /) -> Job[P, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    queue: str = DEFAULT_QUEUE,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
    retry_base_seconds: float = 2.0,
    retry_cap_seconds: float = 3600.0,
    retry_delays: Sequence[float] | None = None,
    retry_on: ErrorClasses | None = None,
    give_up_on: ErrorClasses | None = None,
    lease_seconds: float = DEFAULT_LEASE_SECONDS,
    heartbeat_seconds: float | None = None,
    max_execute_seconds: float | None = None,
    isolated: bool = False,
    commit: Literal["flushed", "grouped"] = "flushed",
    cron: str | None = None,
    timezone: str = "UTC",
    missed: str = "last",
    key: KeyOption | None = None,
    unique_key: KeyOption | None = None,
    keep: Literal["first", "last"] | None = None,
    quiet: timedelta | None = None,
    result: Literal["discard", "keep"] = "discard",
    slo: str | None = None,
) -> Callable[[Callable[P, R]], Job[P, R]]: ...
def job(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, **options: Any
) -> Job[P, R] | Callable[[Callable[P, R]], Job[P, R]]:
    """Register a function as a job: `@job`, or `@job(queue="mail", max_attempts=5)`.

    Jobs of an `async def` run in the event loop of a worker process, many at once; in RQ's own worker one by one.

    Args:
        function: Function to register, for `@job` without options.
        name: Name of the job; by default the dotted path of the function.
        queue: Queue that `.stage` puts the job into.
        max_attempts: Claims that may fail before the job is dead; 0 for no limit.
        timeout_seconds: Timeout of one attempt.
        retry_base_seconds: Wait after the first failure; doubles with each further one, with jitter.
        retry_cap_seconds: Upper bound of the wait between two attempts.
        retry_delays: Exact waits in seconds instead, such as `[10, 30, 60]`; the last one is repeated.
        retry_on: Classes of the only errors after which the job is tried again; the job is dead at once after others.
        give_up_on: Classes of errors after which the job is dead at once, even if `retry_on` has them.
        lease_seconds: Time after its worker's death at which the job runs elsewhere; the worker extends the lease while
            the job runs.
        heartbeat_seconds: Time between two extensions of the lease; a third of the lease by default.
        max_execute_seconds: Time after which a running attempt's stack is logged, once; half of its timeout by default.
        isolated: True to let `drain work` run each attempt in a process of its own, as RQ's worker always does: for
            code that leaks memory, crashes or cannot be interrupted.
        commit: "grouped" to let `drain work` begin the next job before the commit of this job's `transaction()` is on
            the disk; it waits for many commits together, and tells nobody of them before. If PostgreSQL crashes before
            that, the writes and the finish are both undone, and the job runs again: for jobs that tell nobody else
            after their `transaction()` what they have written there.
        cron: Cron line, such as "0 3 * * *", or "*/15 * * * * *" with seconds: one job without arguments is staged at
            each of its ticks. `drain work` writes this schedule to the database, under the name of the job.
        timezone: Time zone in which the line is read.
        missed: "last", "all" or "none" of the ticks is staged that passed while there was no leader.
        key: Customer, tenant or resource of a job: a text, a whole number, or a function that is called with the
            job's arguments as it is staged, such as `lambda order_id, **_: order_id`.
        unique_key: Text of which one job of this name alone waits; given as `key`. See `drain.stage`.
        keep: Which job stands for a unique key, the `"first"`, as by default, or the `"last"`.
        quiet: Time for which no other job with the unique key must have come before one runs.
        result: "keep" to keep the value that the function returns, as JSON of up to 64 KiB, for `drain.result`; it is
            written in the commit that finishes the job. A job that finishes itself in its `transaction()` gives it by
            `current_job().set_result`.
        slo: Service level objective, such as "99% start within 5s", for `drain slo`; see docs/operations/slo.md.

    Raises:
        ValueError: An option has an impossible value, another function has this name, or the function is a generator.
        TypeError: `job` has no such option.
    """
    if function is not None:
        return _register(function, name, JobOptions())
    checked = _checked(name, options)
    return lambda function: _register(function, name, checked)


def _checked(name: str | None, options: dict[str, Any]) -> JobOptions:
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(_no_such_option(option))
    if name is not None and (not isinstance(name, str) or not name):
        raise ValueError(f"name must be a text, and not empty, not {name!r}")
    checked = JobOptions(**options)
    if not QUEUE_NAME.fullmatch(checked.queue):
        raise ValueError(
            f"{checked.queue!r} is not a queue name: {QUEUE_CHARACTERS}, at most 100 of them, "
            "and a letter, a digit or _ first"
        )
    return checked


def _no_such_option(option: str) -> str:
    if option in _OPTIONS_OF_STAGE:
        return f"job() has no option {option!r}: it belongs to one job, drain.stage(..., {option}=...)"
    from difflib import get_close_matches

    longer = [each for each in _OPTIONS if each.startswith(option)]
    similar = longer or get_close_matches(option, _OPTIONS, n=1, cutoff=0.5)
    hint = f"did you mean {similar[0]}? " if similar else ""
    return f"job() has no option {option!r}; {hint}There are: {', '.join(_OPTIONS)}"


def _register(function: Callable[P, R], name: str | None, options: JobOptions) -> Job[P, R]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(
            f"{_origin(function)} yields, so calling it would run none of it; use a plain function"
        )
    registered = Job(function, name or dotted_name(function), options)
    if options.cron is not None:
        _check_scheduled(function, registered.job_name)
    known = _jobs.get(registered.job_name)
    if known is not None and _origin(known.function) != _origin(function):
        raise ValueError(
            f"two functions are registered as {registered.job_name!r}: "
            f"{_origin(known.function)} and {_origin(function)}; give one of them another name"
        )
    _jobs[registered.job_name] = registered
    return registered


def _check_scheduled(function: Callable[..., Any], name: str) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ValueError(
            f"{_origin(function)} cannot be called without arguments ({error}), as at each tick of its cron line; "
            "use drain.schedule(..., args=...)"
        ) from None
    if len(name) > LONGEST_NAME:
        raise ValueError(f"the name of a job with a cron line has at most {LONGEST_NAME} characters")


def load(modules: Sequence[str]) -> None:
    """Import the modules that define jobs, so that they register them.

    Raises:
        ConfigError: `modules` is empty.
        JobModuleError: A module is given as a path, or does not import; the text says which, and why.
    """
    if not modules:
        raise ConfigError(
            "no module with jobs is named: set DRAIN_JOBS (or pass --jobs), such as shop.jobs,shop.mail"
        )
    for module in modules:
        if "/" in module or module.startswith(".") or module.endswith(".py"):
            name = module.removesuffix(".py").strip("./").replace("/", ".")
            raise JobModuleError(
                f"{module!r} is a path, not the name of a module: write {name!r} (DRAIN_JOBS, or --jobs)"
            )
        try:
            importlib.import_module(module)
        # The code of a module may raise anything while it is imported, SystemExit too.
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())
            place = _place_in(module, error.__traceback__)
            hint = f"look at {place} (named in DRAIN_JOBS)" if place else "check DRAIN_JOBS and PYTHONPATH"
            if isinstance(error, ModuleNotFoundError) and error.name in ("workers", "pipeline"):
                hint = f"job-drain's `{error.name}` is `drain.{error.name}` now"
            raise JobModuleError(
                f"the job module {module!r} does not import: {type(error).__name__}: {reason}; {hint}"
            ) from error


def _place_in(module: str, trace: TracebackType | None) -> str | None:
    """Find the last line of the module's own package that was executed before an error; None if there is none."""
    package = module.partition(".")[0]
    place = None
    for frame, line in traceback.walk_tb(trace):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            place = f"{Path(frame.f_code.co_filename).name}, line {line}"
    return place


def find(name: str) -> Job[..., Any] | None:
    """Find the job that is registered under this name; None if there is none."""
    return _jobs.get(name)


def find_to_stage(name: str) -> Job[..., Any] | None:
    """Find a job that is staged by its name, and warn once of a name that is missing among registered ones."""
    found = _jobs.get(name)
    if found is None and _jobs:
        job_options.warn_of_unknown(name)
    return found


job_options.look_up = find_to_stage


def options(name: str) -> JobOptions:
    """Find the options of jobs of this name; the defaults if no job has it."""
    registered = _jobs.get(name)
    return registered.job_options if registered else _DEFAULT_OPTIONS


def names() -> list[str]:
    """List all registered names, sorted."""
    return sorted(_jobs)


def queues() -> set[str]:
    """Collect the queues of all registered jobs."""
    return {registered.job_options.queue for registered in _jobs.values()}


def limits() -> dict[str, Limits]:
    """Collect the limits that a claim needs to know, by name."""
    return {name: registered.job_options.limits for name, registered in _jobs.items()}


def _origin(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"

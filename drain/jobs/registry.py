"""Registered jobs: workers run only names registered with `@job`."""

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
from drain.jobs import dependencies, options as job_options
from drain.jobs.dependencies import AfterFunction
from drain.jobs.keys import KeyOption
from drain.jobs.options import DEFAULT_QUEUE, SHARED, ErrorClasses, JobOptions, dotted_name
from drain.jobs.signature import Signature
from drain.jobs.stage_options import StageOptions, check_names
from drain.jobs.stager import Stager
from drain.jobs.timetable import LONGEST_NAME
from drain.tables.limits import DEFAULT_LEASE_SECONDS, DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT_SECONDS, Limits

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = ("name", *(each.name for each in fields(JobOptions)))
_OPTIONS_OF_STAGE = ("priority", "run_at", "expires_at", "tag", "context", "idempotency_key", "on_failure")


class Job(Stager[P], Generic[P, R]):
    """Registered function: callable as before, and able to stage itself.

    Attributes:
        runs_in_loop: Jobs of an `async def` share a worker process's event loop.
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
        """Call the function."""
        return self.function(*args, **kwargs)

    def options(self, **given: Unpack[StageOptions]) -> Stager[P]:
        """Return a stager with options: `send.options(run_in=60).stage(session, 42)`; TypeError if unknown."""
        check_names("options()", given)
        if "after" in given:
            given["after"] = dependencies.reusable(given["after"])
        return Stager(self, given)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check arguments, or raise StageError."""
        self.signature.check(self.job_name, args, kwargs)


_jobs: dict[str, Job[..., Any]] = {}
# Our own: neither listed nor staged by applications.
_own: dict[str, Job[..., Any]] = {}
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
    commit: Literal["flushed", "grouped", "shared"] = "flushed",
    cron: str | None = None,
    timezone: str = "UTC",
    missed: str = "last",
    key: KeyOption | None = None,
    unique_key: KeyOption | None = None,
    keep: Literal["first", "last"] | None = None,
    quiet: timedelta | None = None,
    result: Literal["discard", "keep"] = "discard",
    slo: str | None = None,
    after: AfterFunction | None = None,
) -> Callable[[Callable[P, R]], Job[P, R]]: ...
def job(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, **options: Any
) -> Job[P, R] | Callable[[Callable[P, R]], Job[P, R]]:
    """Register a function as a job: `@job`, or `@job(queue="mail", max_attempts=5)`.

    `async def` jobs share a worker process's event loop; RQ's own worker runs them one by one.

    Args:
        function: Function to register.
        name: Name of the job; by default the function's dotted path.
        queue: Default queue.
        max_attempts: Failed claims before the job is dead; 0 for no limit.
        timeout_seconds: Timeout per attempt.
        retry_base_seconds: Wait after the first failure; doubles each time, with jitter.
        retry_cap_seconds: Maximum wait between attempts.
        retry_delays: Exact waits in seconds instead, such as `[10, 30, 60]`; the last one repeats.
        retry_on: The only errors that are retried; None for all.
        give_up_on: Errors that are never retried, even if in `retry_on`.
        lease_seconds: Time after a worker's death until its jobs run elsewhere; extended while jobs run.
        heartbeat_seconds: Interval of extensions; by default a third of the lease.
        max_execute_seconds: Time until a running attempt's stack is logged once; by default half the timeout.
        isolated: True to run attempts in their own processes, as RQ's worker does: for code that leaks memory, crashes
            or cannot be interrupted.
        commit: "grouped" to start the next job before this job's `transaction()` is flushed. A PostgreSQL crash before
            that undoes writes and finish, and the job runs again: only for jobs that do not announce their writes to
            other systems afterwards. "shared" to commit short jobs of `drain work` together, up to 50 or 20 ms: only
            for jobs that bear each other's locks; see docs/howto/transactions-in-jobs.md.
        cron: Cron line, such as "0 3 * * *", or with seconds "*/15 * * * * *": each tick stages a job without
            arguments. `drain work` writes the schedule to the database, under the job's name.
        timezone: Time zone of the cron line.
        missed: Which ticks to stage that passed without a leader: "last", "all" or "none".
        key: Customer, tenant or resource: a string, a whole number, or a function of the job's arguments, such as
            `lambda order_id, **_: order_id`.
        unique_key: Only one job of this name waits per unique key; given as `key`. See `drain.stage`.
        keep: Which one: `"first"` (default) or `"last"`.
        quiet: Time without another job of the unique key before one runs.
        result: "keep" to keep the return value for `drain.result`: JSON up to 64 KiB, committed with the finish. Jobs
            that finish in their `transaction()` call `current_job().set_result`.
        slo: Objective for `drain slo`, such as "99% start within 5s"; see docs/operations/slo.md.
        after: Function of the job's arguments that returns ids of jobs to wait for, `drain.After`s, or None. See
            `drain.stage`.

    Raises:
        ValueError: An invalid value, a name in use, or a generator function.
        TypeError: Unknown option.
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
        raise ValueError(f"name must be a non-empty string, not {name!r}")
    checked = JobOptions(**options)
    if not QUEUE_NAME.fullmatch(checked.queue):
        raise ValueError(
            f"{checked.queue!r} is not a queue name: {QUEUE_CHARACTERS}, at most 100 of them, "
            "and a letter, a digit or _ first"
        )
    return checked


def _no_such_option(option: str) -> str:
    if option in _OPTIONS_OF_STAGE:
        return f"job() has no option {option!r}: it is set per job, drain.stage(..., {option}=...)"
    from difflib import get_close_matches

    longer = [each for each in _OPTIONS if each.startswith(option)]
    similar = longer or get_close_matches(option, _OPTIONS, n=1, cutoff=0.5)
    hint = f"did you mean {similar[0]}? " if similar else ""
    return f"job() has no option {option!r}; {hint}Options: {', '.join(_OPTIONS)}"


def _register(function: Callable[P, R], name: str | None, options: JobOptions) -> Job[P, R]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(
            f"{_origin(function)} is a generator function, so calling it would run nothing; use a plain function"
        )
    if options.commit == SHARED and inspect.iscoroutinefunction(function):
        raise ValueError(f'{_origin(function)} is `async def`, so it cannot have commit="shared"')
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
            f"{_origin(function)} cannot be called without arguments ({error}), as each tick of its cron line does; "
            "use drain.schedule(..., args=...)"
        ) from None
    if len(name) > LONGEST_NAME:
        raise ValueError(f"the name of a job with a cron line must have at most {LONGEST_NAME} characters")


def load(modules: Sequence[str]) -> None:
    """Import modules that register jobs.

    Raises:
        ConfigError: `modules` is empty.
        JobModuleError: A module is a path, or fails to import.
    """
    if not modules:
        raise ConfigError("no job modules: set DRAIN_JOBS (or pass --jobs), such as shop.jobs,shop.mail")
    for module in modules:
        if "/" in module or module.startswith(".") or module.endswith(".py"):
            name = module.removesuffix(".py").strip("./").replace("/", ".")
            raise JobModuleError(
                f"{module!r} is a path, not a module name: write {name!r} (DRAIN_JOBS, or --jobs)"
            )
        try:
            importlib.import_module(module)
        # Imports may raise anything, even SystemExit.
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())
            place = _place_in(module, error.__traceback__)
            hint = f"see {place} (named in DRAIN_JOBS)" if place else "check DRAIN_JOBS and PYTHONPATH"
            if isinstance(error, ModuleNotFoundError) and error.name in ("workers", "pipeline"):
                hint = f"job-drain's `{error.name}` is `drain.{error.name}` now"
            raise JobModuleError(
                f"the job module {module!r} cannot be imported: {type(error).__name__}: {reason}; {hint}"
            ) from error


def _place_in(module: str, trace: TracebackType | None) -> str | None:
    package = module.partition(".")[0]
    place = None
    for frame, line in traceback.walk_tb(trace):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            place = f"{Path(frame.f_code.co_filename).name}, line {line}"
    return place


def own(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a job of job-drain."""

    def register(function: Callable[P, R]) -> Callable[P, R]:
        _own[name] = Job(function, name, _DEFAULT_OPTIONS)
        return function

    return register


def find(name: str) -> Job[..., Any] | None:
    """Find a registered job, or one of job-drain."""
    return _own.get(name) or _jobs.get(name)


def find_to_stage(name: str) -> Job[..., Any] | None:
    """Find a job; warn once if it is not registered."""
    found = _jobs.get(name)
    if found is None and _jobs:
        job_options.warn_of_unknown(name)
    return found


job_options.look_up = find_to_stage


def options(name: str) -> JobOptions:
    """Options of a job, or the defaults."""
    registered = _jobs.get(name)
    return registered.job_options if registered else _DEFAULT_OPTIONS


def names() -> list[str]:
    """Sorted names."""
    return sorted(_jobs)


def queues() -> set[str]:
    """Queues of registered jobs."""
    return {registered.job_options.queue for registered in _jobs.values()}


def limits() -> dict[str, Limits]:
    """Limits for claims, by name."""
    return {name: registered.job_options.limits for name, registered in _jobs.items()}


def _origin(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"

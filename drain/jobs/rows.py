"""Rows of staged jobs, validated, as statements, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias, Unpack, cast

from drain import hooks
from drain.errors import StageError
from drain.jobs import dependencies, idempotency, options as job_options, values
from drain.jobs.dependencies import Predecessors
from drain.jobs.keys import NO_KEYS, KeyOption, Keys
from drain.jobs.options import DEFAULT_QUEUE, JobOptions, RegisteredJob, name_and_options
from drain.jobs.stage_options import ManyOptions, StageOptions, check_names, refuse_for_many
from drain.tables import inserts
from drain.tables.columns import BLOCKED_UNTIL

Job: TypeAlias = "str | Callable[..., Any] | RegisteredJob"
Arguments: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
_Check: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], None]
_EdgesOf: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], str]

# Few round trips, and JSON arrays that PostgreSQL accepts.
_ROWS_PER_STATEMENT = 10_000
_CHARACTERS_PER_STATEMENT = 8_000_000


@dataclass(frozen=True, slots=True)
class Insert:
    """Statement that stages jobs and returns a number for each."""

    statement: str
    parameters: Mapping[str, Any]
    idempotency_key: str | None = None

    def ids(self, numbers: list[int]) -> list[int]:
        """Convert numbers to ids, or raise IdempotencyConflictError."""
        if self.idempotency_key is not None:
            idempotency.check_answer(self.idempotency_key, numbers[0])
        return numbers


def insert_one(
    job: Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    /,
    **options: Unpack[StageOptions],
) -> Insert:
    """Build the statement for one job; raises as `drain.stage`."""
    check_names("stage()", options)
    key = options.pop("idempotency_key", None)
    period = options.pop("idempotency_period", None)
    idempotency.check(key, period)
    member = _member(options)
    edges_of = _edges(options, name_and_options(job)[1], is_member=bool(member))
    columns = staged_row(job, args, kwargs, **cast(ManyOptions, options))
    edges = edges_of(args, kwargs or {}) if edges_of is not None else dependencies.NO_EDGES
    is_dependent = bool(member) or edges != dependencies.NO_EDGES
    if key is not None:
        given = {**columns, **member, "after": edges} if is_dependent else columns
        return Insert(*idempotency.statement(key, period, given), idempotency_key=key)
    if not is_dependent:
        return Insert(inserts.insert_one(tuple(columns)), columns)
    arguments = f"[[{columns.pop('job_args')},{columns.pop('job_kwargs')},{edges}]]"
    statement = inserts.insert_dependent(tuple(columns), own_keys=False, joins=bool(member))
    return Insert(statement, {**columns, **member, inserts.ARGUMENTS: arguments})


def insert_many(
    job: Job, arguments: Iterable[Arguments], /, **options: Unpack[ManyOptions]
) -> Iterator[Insert]:
    """Build statements of 10,000 jobs each; may raise StageError between two."""
    check_names("stage_many()", options)
    refuse_for_many(options)
    name, registered = name_and_options(job)
    member = _member(options)
    edges_of = _edges(options, registered, is_member=bool(member))
    keys = _keys(options, registered)
    if hooks.stage_hooks:
        options["context"] = hooks.staging(name, None, None, options.get("context"))
    columns = _columns(name, registered, options)
    own_keys = keys is not None and keys.differ
    if keys is not None and not own_keys:
        columns |= keys.columns((), {})
    if not isinstance(arguments, Iterable):
        kind = values.name_of_type(arguments)
        raise StageError(f"the arguments of many jobs must be a list, not a {kind}")
    if edges_of is None:
        statement = inserts.insert_many(tuple(columns), own_keys=own_keys)
    else:
        statement = inserts.insert_dependent(tuple(columns), own_keys=own_keys, joins=bool(member))
    check = _check_of(job, name, registered)
    own = keys if own_keys else None
    for block in _blocks(_element(check, given, own, edges_of) for given in arguments):
        yield Insert(statement, {**columns, **member, inserts.ARGUMENTS: f"[{','.join(block)}]"})


def production(job: Job, options: StageOptions | ManyOptions, *, many: bool = False) -> hooks.Production:
    """Block that measures a staging call."""
    name, registered = name_and_options(job)
    default = DEFAULT_QUEUE if registered is None else registered.queue
    return hooks.Production(name, options.get("queue") or default, many=many)


def staged_row(
    job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, /, **options: Unpack[ManyOptions]
) -> dict[str, Any]:
    """As `row`, with the context that hooks add."""
    if hooks.stage_hooks:
        name, _ = name_and_options(job)
        options["context"] = hooks.staging(name, args, kwargs or {}, options.get("context"))
    return row(job, args, kwargs, **options)


def row(
    job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, /, **options: Unpack[ManyOptions]
) -> dict[str, Any]:
    """Validate a job; return its non-null columns, or raise StageError."""
    name, registered = name_and_options(job)
    keys = _keys(options, registered)
    columns = _columns(name, registered, options)
    check = _check_of(job, name, registered)
    columns["job_args"], columns["job_kwargs"] = _arguments(check, args, kwargs or {})
    return columns if keys is None else columns | keys.columns(args, kwargs or {})


def _check_of(job: Job, name: str, registered: JobOptions | None) -> _Check | None:
    found = job_options.look_up(name) if registered is None else cast(RegisteredJob, job)
    return None if found is None else found.check_arguments


def check_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check a job's arguments as `stage` does; raises StageError."""
    _arguments(_check_of(name, name, None), args, kwargs)


def _arguments(check: _Check | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
    texts = values.as_arguments(args, kwargs)
    if check is not None:
        check(args, kwargs)
    return texts


def is_full(elements: int, characters: int) -> bool:
    """Return whether a statement's JSON array should get no more elements."""
    return elements >= _ROWS_PER_STATEMENT or characters > _CHARACTERS_PER_STATEMENT


def _blocks(elements: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    for element in elements:
        block.append(element)
        size += len(element)
        if is_full(len(block), size):
            yield block
            block, size = [], 0
    if block:
        yield block


def _element(check: _Check | None, given: Arguments, keys: Keys | None, edges_of: _EdgesOf | None) -> str:
    args, kwargs = ((), given) if isinstance(given, Mapping) else (given, {})
    parts = list(_arguments(check, args, kwargs))
    if keys is not None:
        parts.append(values.as_json("keys", keys.columns(args, kwargs)))
    if edges_of is not None:
        parts.append(edges_of(args, kwargs))
    return f"[{','.join(parts)}]"


def predecessors(options: StageOptions | ManyOptions, registered: JobOptions | None) -> Predecessors | None:
    """Take the predecessors out of the options of a call."""
    default = None if registered is None else registered.after
    return dependencies.of_call(options.pop("after", None), options.pop("on_failure", None), default)


def _edges(
    options: StageOptions | ManyOptions, registered: JobOptions | None, *, is_member: bool
) -> _EdgesOf | None:
    found = predecessors(options, registered)
    if found is None:
        return (lambda _args, _kwargs: dependencies.NO_EDGES) if is_member else None
    return found.ids_and_nodes if is_member else found.ids


def _member(options: StageOptions | ManyOptions) -> dict[str, Any]:
    """Take the parameters of `drain_join` out of the options of a call; none without a flow."""
    given = cast(StageOptions, options)
    flow, node = given.pop("flow", None), given.pop("node", None)
    if flow is None:
        if node is not None:
            raise StageError("node is a job's name in a flow: give flow=, too")
        return {}
    return {"flow": dependencies.as_id("flow", flow), "node": values.as_key("node", node)}


def _keys(options: ManyOptions, registered: JobOptions | None) -> Keys | None:
    defaults = NO_KEYS if registered is None else registered.keys
    given: tuple[KeyOption | None, KeyOption | None, str | None, timedelta | None] = (
        options.pop("key", None),
        options.pop("unique_key", None),
        options.pop("keep", None),
        options.pop("quiet", None),
    )
    if defaults is NO_KEYS and given == (None, None, None, None):
        return None
    merged = Keys(*given).over(defaults)
    merged.check()
    return merged


def _columns(name: str, registered: JobOptions | None, options: ManyOptions) -> dict[str, Any]:
    """Collect non-null columns; others get the schema's defaults."""
    queue, max_attempts = options.get("queue"), options.get("max_attempts")
    timeout_seconds = options.get("timeout_seconds")
    if registered is not None:
        queue = registered.queue if queue is None else queue
        max_attempts = registered.max_attempts if max_attempts is None else max_attempts
        timeout_seconds = registered.timeout_seconds if timeout_seconds is None else timeout_seconds
    columns = {
        "job_name": values.as_text("job", name),
        "queue": values.as_queue(queue),
        "priority": values.as_integer("priority", options.get("priority")),
        "scheduled_at": _scheduled_at(options.get("run_at"), options.get("run_in")),
        "expires_at": values.as_time("expires_at", options.get("expires_at")),
        "tag": values.as_text("tag", options.get("tag")),
        "max_attempts": values.as_integer("max_attempts", max_attempts),
        "timeout_seconds": values.as_integer("timeout_seconds", timeout_seconds),
        "context": values.as_context(options.get("context")),
    }
    return {column: value for column, value in columns.items() if value is not None}


def _scheduled_at(run_at: datetime | None, run_in: timedelta | float | None) -> datetime | None:
    if run_in is None:
        at = values.as_time("run_at", run_at)
        if at is not None and at >= BLOCKED_UNTIL:
            raise StageError(f"run_at must lie before {BLOCKED_UNTIL:%Y-%m-%d}, the time of blocked jobs")
        return at
    if run_at is not None:
        raise StageError("give run_at or run_in, not both")
    return values.as_later("run_in", run_in)

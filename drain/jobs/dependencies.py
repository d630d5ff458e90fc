"""Predecessors of a job: earlier jobs that it waits for."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from drain.errors import StageError
from drain.jobs.keys import computed
from drain.jobs.values import LARGEST_ID, name_of_type

OnFailure: TypeAlias = Literal["cancel", "run", "hold", "only"]

_CHOICES = ("cancel", "run", "hold", "only")
NO_EDGES = "[]"
_write = json.JSONEncoder(separators=(",", ":")).encode


class Identified:
    """Batch or flow: stands for its id in `after=` and `flow=`."""

    id: int


@dataclass(frozen=True, slots=True)
class FlowOfJob(Identified):
    """Batch or flow of a running job.

    Attributes:
        id: Id of the batch or flow.
        node: Name of the running member; None in a batch, and of a callback.
    """

    id: int
    node: str | None


@dataclass(frozen=True, slots=True)
class After:
    """Predecessor in `after=`, with its own `on_failure`.

    Attributes:
        job_id: Id that `drain.stage` returned, a batch or flow, or in a flow the name of a node.
        on_failure: If the predecessor dies, "cancel" the waiting job, "run" it, or "hold" it until the predecessor has
            been retried and finishes. With "only", the job runs only if the predecessor dies.

    Raises:
        StageError: An invalid id or choice.
    """

    job_id: int | str | Identified
    on_failure: OnFailure = "cancel"

    def __post_init__(self) -> None:
        if not isinstance(self.job_id, str):
            as_id("after", self.job_id)
        _check_choice(self.on_failure)


Given: TypeAlias = "int | str | Identified | After | Iterable[int | str | Identified | After]"
# Choices by id, or by name of a node of the same flow.
Edges: TypeAlias = "dict[int | str, str]"
AfterFunction: TypeAlias = "Callable[..., Given | None]"
AfterOption: TypeAlias = "Given | AfterFunction"


class Predecessors:
    """Predecessors of a call's jobs: the same for all, or computed from each one's arguments."""

    def __init__(self, given: AfterOption, on_failure: OnFailure) -> None:
        self._on_failure = on_failure
        self._function = given if callable(given) else None
        self._edges: Edges = {} if callable(given) else _edges(given, on_failure)

    @property
    def may_exist(self) -> bool:
        """False if no job of the call waits."""
        return self._function is not None or bool(self._edges)

    def edges(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Edges:
        """Return the choices by id or node, or raise StageError."""
        if self._function is None:
            return self._edges
        function = self._function
        found = computed("after", lambda *a, **k: reusable(function(*a, **k)), args, kwargs)
        return {} if found is None else _edges(found, self._on_failure)

    def ids(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return JSON for `drain_after`, `[[id, on_failure], ...]`, or raise StageError, also for names of nodes."""
        edges = self.edges(args, kwargs)
        for each in edges:
            if isinstance(each, str):
                as_id("after", each)
        return as_json(edges)

    def ids_and_nodes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return JSON as `ids`, with names for nodes of the job's flow."""
        return as_json(self.edges(args, kwargs))


def of_call(
    after: AfterOption | None, on_failure: OnFailure | None, registered: AfterFunction | None
) -> Predecessors | None:
    """Return the predecessors of a call, by default those of the registration.

    Raises:
        StageError: An option is invalid.
    """
    _refuse_job(after)
    chosen = registered if after is None else after
    if on_failure is not None:
        _check_choice(on_failure)
        if chosen is None:
            raise StageError("on_failure needs jobs to wait for: give their ids as after=[...]")
    found = None if chosen is None else Predecessors(chosen, on_failure or "cancel")
    return found if found is not None and found.may_exist else None


def reusable(given: Any) -> Any:
    """Read an iterator's items, so that they can be used again; return all else as it is."""
    return tuple(given) if hasattr(given, "__next__") else given


def check_registered(after: object, cron: str | None) -> None:
    """Check `@job(after=...)`, or raise ValueError."""
    if after is None:
        return
    _refuse_job(after)
    if not callable(after):
        raise ValueError(  # noqa: TRY004  (as for the other options)
            "after must be a function of the job's arguments that returns ids; "
            "for one job, pass ids to drain.stage(..., after=[...])"
        )
    if cron is not None:
        raise ValueError("a job with a cron line cannot wait for others: remove after, or cron")


def as_json(edges: Edges) -> str:
    """Encode edges as `[[id, on_failure], ...]`."""
    return _write(list(edges.items())) if edges else NO_EDGES


def as_id(option: str, given: object) -> int:
    """Convert an id, or an object that has one."""
    found: Any = given.id if isinstance(given, Identified) else given
    # True is an int, but a mistake here.
    if isinstance(found, bool) or not hasattr(found, "__index__"):
        raise StageError(
            f"{option} takes the ids that stage() returned, which are whole numbers, not a {name_of_type(found)}"
        )
    if not 1 <= operator.index(found) <= LARGEST_ID:
        raise StageError(
            f"{option} takes the ids that stage() returned, from 1 to {LARGEST_ID}, not {found!r:.40}"
        )
    return operator.index(found)


def _edges(given: object, on_failure: OnFailure) -> Edges:
    choices: Edges = {}
    for each in _listed(given):
        found = each if isinstance(each, After) else After(each, on_failure)
        name = found.job_id if isinstance(found.job_id, str) else as_id("after", found.job_id)
        if choices.setdefault(name, found.on_failure) != found.on_failure:
            raise StageError(f"after has job {name} twice, with different on_failure: give it once")
    return choices


def _listed(given: object) -> Iterable[Any]:
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray | Mapping):
        return given
    return (given,)


def _check_choice(on_failure: object) -> None:
    if on_failure not in _CHOICES:
        raise StageError(f"on_failure must be 'cancel', 'run', 'hold' or 'only', not {on_failure!r:.100}")


def _refuse_job(after: object) -> None:
    # Called as a function of the arguments, it would run here.
    if hasattr(after, "job_options"):
        raise StageError(
            "after takes ids of jobs, not a registered function: pass the id that its stage() returned"
        )

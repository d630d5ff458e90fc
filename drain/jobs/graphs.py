"""Flows: named jobs that wait for each other, staged as one graph."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, Unpack, cast

from drain import hooks
from drain.errors import StageError
from drain.jobs import conversations, dependencies, idempotency, rows, values
from drain.jobs.async_executors import AsyncConnectable
from drain.jobs.conversations import Callback, Conversation, Node
from drain.jobs.dependencies import AfterOption, Edges, Identified, OnFailure
from drain.jobs.executors import Connectable
from drain.jobs.keys import KeyOption
from drain.jobs.options import DEFAULT_QUEUE, name_and_options
from drain.jobs.rows import Job
from drain.jobs.stage_options import ManyOptions, check_names
from drain.tables import flows
from drain.tables.columns import MARKER

_Columns: TypeAlias = "Mapping[str, Any]"
_Defaults: TypeAlias = "Mapping[str, Any]"


@dataclass(frozen=True, slots=True)
class StagedFlow(Identified):
    """Flow in the database, usable in `after=` and `flow=`.

    Attributes:
        id: Id of the flow, and of the job that ends it.
        is_new: False if the flow was staged earlier, with the same idempotency key.
        jobs: Job ids by node name; empty if the earlier flow's rows have been deleted.
    """

    id: int
    is_new: bool
    jobs: Mapping[str, int]


class _Added(NamedTuple):
    """Node of a flow; its columns depend on the defaults of the flows around it."""

    columns: Callable[[_Defaults], _Columns]
    edges: Edges

    @property
    def nodes(self) -> Sequence[str]:
        """Nodes that it waits for."""
        return [each for each in self.edges if isinstance(each, str)]

    def node(self, name: str, flow: str, defaults: _Defaults) -> Node:
        """Validate the node, or raise StageError."""
        try:
            return Node(name, self.columns(defaults), self.edges)
        except StageError as error:
            raise StageError(f"node {name!r:.100} of flow {flow!r:.100}: {error}") from error

    def within(self, prefix: str, defaults: _Defaults, first: Edges) -> _Added:
        """Return the node as part of a sub-flow; `first` are the edges of nodes without predecessors in it."""
        edges: Edges = {
            prefix + each if isinstance(each, str) else each: choice for each, choice in self.edges.items()
        }
        if not self.nodes:
            edges = {**first, **edges}
        return _Added(lambda outer: self.columns({**outer, **defaults}), edges)


class Flow:
    """Graph of named jobs that wait for each other, staged in one transaction.

    Args:
        name: Name for operators.
        key: Default of each node's `key`; see `drain.stage`.
        tag: Default of each node's `tag`.
        idempotency_key: Return the flow that this role staged with this key, if its nodes, arguments and edges are
            the same.
        idempotency_period: Retention of the key; a week by default.
        deadline: Default of each node's `expires_at`: a time, or a timedelta from when the flow is staged.
        description: Text for operators.
        on_success, on_complete, on_dead: As for `drain.batch`.
        undo: As for `drain.batch`. Then no node waits for another with `hold`.

    Raises:
        StageError: An invalid option.
    """

    def __init__(
        self,
        name: str,
        *,
        key: KeyOption | None = None,
        tag: str | None = None,
        idempotency_key: str | None = None,
        idempotency_period: timedelta | None = None,
        deadline: datetime | timedelta | None = None,
        description: str | None = None,
        on_success: Callback | None = None,
        on_complete: Callback | None = None,
        on_dead: Callback | None = None,
        undo: bool | str = False,
    ) -> None:
        self.name = values.as_name("the name of a flow", name)
        self._defaults: _Defaults = _given(key=key, tag=tag, expires_at=deadline)
        self._options = {
            "name": self.name,
            "tag": values.as_text("tag", tag),
            "description": values.as_description(description),
            "undo": values.as_undo(undo=undo),
            **idempotency.options(idempotency_key, idempotency_period),
        }
        self._callbacks = {"success": on_success, "complete": on_complete, "dead": on_dead}
        self._added: dict[str, _Added] = {}

    def add(
        self,
        name: str,
        job: Job,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ManyOptions],
    ) -> None:
        """Add a job, to be validated and staged with the flow.

        Args:
            name: Unique in the flow: up to 255 characters, no dot.
            job: As for `drain.stage`.
            args: As for `drain.stage`.
            kwargs: As for `drain.stage`.
            options: As for `drain.stage_many`. `after` also takes names of nodes, added before or later.

        Raises:
            StageError: The name is taken, or `after` is invalid.
        """
        check_names("Flow.add()", options)
        for option in ("flow", "node", "idempotency_key", "idempotency_period"):
            if option in options:
                raise StageError(f"Flow.add() does not accept {option}=: leave it out")
        predecessors = rows.predecessors(options, name_and_options(job)[1])
        edges = {} if predecessors is None else predecessors.edges(args, kwargs or {})
        own = _given(**options)
        columns = partial(_columns, job, args, kwargs, own)
        self._add(_name_of_node(name), _Added(columns, edges))

    def add_flow(
        self, name: str, flow: Flow, *, after: AfterOption | None = None, on_failure: OnFailure | None = None
    ) -> None:
        """Add a copy of another flow's nodes, as `"name.node"`.

        Nodes with `after=["name"]` wait for all of them. If one of them dies, so does `name`.

        Args:
            name: As for `add`.
            flow: Flow with nodes, and without callbacks, undo or an idempotency key.
            after: Predecessors of the nodes that have none in `flow`; as for `add`.
            on_failure: As for `drain.stage`.

        Raises:
            StageError: As `add`, or the flow can't be part of another.
        """
        _require_part(flow)
        outer = dependencies.of_call(after, on_failure, None)
        first = {} if outer is None else outer.edges((), {})
        prefix = f"{_name_of_node(name)}."
        for inner, added in flow._added.items():
            self._add(prefix + inner, added.within(prefix, flow._defaults, first))
        end = {"job_name": MARKER, "job_args": "[]", "job_kwargs": "{}"}
        self._add(name, _Added(lambda _outer: end, {prefix + inner: "cancel" for inner in flow._added}))

    def stage(self, connection: Connectable) -> StagedFlow:
        """Stage the flow in the open transaction, 10,000 nodes per statement.

        Args:
            connection: As for `drain.stage`, but not in autocommit mode.

        Raises:
            StageError: An invalid node, an unknown name in `after`, or a cycle. Nothing was sent.
            IdempotencyConflictError: The key belongs to a job or another flow. The transaction is aborted.
        """
        with hooks.Production(self.name, DEFAULT_QUEUE, many=True) as production:
            staged = conversations.run(connection, self._conversation())
            production.ids = list(staged.jobs.values())
            return staged

    async def astage(self, connection: AsyncConnectable) -> StagedFlow:
        """Stage the flow on an asynchronous connection; see `stage`."""
        with hooks.Production(self.name, DEFAULT_QUEUE, many=True) as production:
            staged = await conversations.arun(connection, self._conversation())
            production.ids = list(staged.jobs.values())
            return staged

    def _add(self, name: str, added: _Added) -> None:
        if name in self._added:
            raise StageError(
                f"flow {self.name!r:.100} already has a node {name!r:.100}: give each its own name"
            )
        self._added[name] = added

    def _conversation(self) -> Conversation[StagedFlow]:
        graph = {name: added.nodes for name, added in self._added.items()}
        defaults = _from_now(self._defaults)
        nodes = [self._added[name].node(name, self.name, defaults) for name in _ordered(self.name, graph)]
        if self._options["undo"]:
            _refuse_hold(self.name, nodes)
        callbacks = conversations.callbacks(self._callbacks)
        digest = _digest(nodes) if self._options["idempotency_key"] else None
        options = {**self._options, "expires_at": defaults["expires_at"], "digest": digest}
        flow, is_new = yield from conversations.opening(options, callbacks)
        if is_new:
            ids = yield from conversations.staging(flow, nodes)
        else:
            names = [node.name for node in nodes]
            found = yield flows.IDS, {"flow": flow, "names": json.dumps(names)}
            ids = dict(zip(names, (job_id for (job_id,) in found), strict=True)) if found else {}
        return StagedFlow(flow, is_new, MappingProxyType(ids))


def _ordered(flow: str, graph: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the names, predecessors first, or raise StageError."""
    for name, waits in graph.items():
        for each in waits:
            if each not in graph:
                raise StageError(
                    f"node {name!r:.100} waits for {each!r:.100}, which flow {flow!r:.100} does not have"
                )
    try:
        return tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise StageError(f"nodes of flow {flow!r:.100} wait for each other: {cycle:.1000}") from None


def _require_part(flow: Flow) -> None:
    """Raise StageError if a flow cannot be part of another."""
    own = (*flow._callbacks.values(), flow._options["idempotency_key"], flow._options["undo"])
    if not flow._added or any(own):
        raise StageError(
            f"flow {flow.name!r:.100} cannot be part of another: give it nodes, and no callbacks, undo or "
            "idempotency key"
        )


def _refuse_hold(flow: str, nodes: Iterable[Node]) -> None:
    """Raise StageError if a node would wait for the retry of a dead one."""
    for node in nodes:
        for above, choice in node.edges.items():
            if choice == "hold" and isinstance(above, str):
                raise StageError(
                    f"node {node.name!r:.100} of flow {flow!r:.100} cannot hold for {above!r:.100}: with undo=, use "
                    "'cancel', 'run' or 'only'"
                )


def _columns(
    job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, own: _Columns, outer: _Defaults
) -> _Columns:
    return rows.staged_row(job, args, kwargs, **cast(ManyOptions, _from_now({**outer, **own})))


def _from_now(defaults: _Defaults) -> dict[str, Any]:
    """Let a deadline count from now."""
    at = defaults.get("expires_at")
    if isinstance(at, timedelta):
        return {**defaults, "expires_at": values.as_later("deadline", at)}
    return {**defaults, "expires_at": values.as_time("expires_at", at)}


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _name_of_node(name: str) -> str:
    text = values.as_name("the name of a node", name)
    if "." in text:
        raise StageError(
            f"node name {name!r:.100} must be a text without dots, which separate the names of sub-flows"
        )
    return text


def _digest(nodes: Iterable[Node]) -> str:
    """Return a hash of the nodes' names, jobs, arguments and edges."""
    content = sorted(
        (
            node.name,
            node.columns["job_name"],
            *(json.loads(node.columns[name]) for name in ("job_args", "job_kwargs")),
            sorted((str(each), choice) for each, choice in node.edges.items()),
        )
        for node in nodes
    )
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

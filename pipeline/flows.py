"""Rows as the members of a new flow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from drain.errors import ConfigError, StageError
from drain.jobs import conversations, values
from drain.jobs.conversations import Callback
from drain.jobs.dependencies import After, OnFailure
from drain.jobs.idempotency import as_object
from drain.pipeline import arguments
from drain.pipeline.datasources.columns import STAGEABLE
from drain.tables import bulk_flows
from drain.tables.bulk_flows import AFTER, NODE, NewFlow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def new_flow(
    name: str,
    *,
    description: str | None = None,
    on_success: Callback | None = None,
    on_complete: Callback | None = None,
    on_dead: Callback | None = None,
    node: str | None = None,
    after: str | None = None,
    on_failure: OnFailure = "cancel",
    queue: str | None = None,
    priority: int | None = None,
    tag: str | None = None,
) -> NewFlow:
    """Describe the flow of a run's jobs.

    Args:
        name: Name for operators.
        description: Text for operators.
        on_success: As for `drain.batch`.
        on_complete: As for `drain.batch`.
        on_dead: As for `drain.batch`.
        node: Column of the jobs' names in the flow: unique, of 1 to 255 characters.
        after: Column of the names that a job waits for: a value, or an array.
        on_failure: If a predecessor dies; as for `drain.stage`.
        queue: Of the callbacks; that of the registration by default.
        priority: Of the callbacks; 0 by default.
        tag: Of the callbacks, and of the flow's end.

    Raises:
        StageError: An invalid option.
    """
    if after is not None and node is None:
        raise StageError("after needs node, the column of the jobs' names")
    if on_failure != "cancel" and after is None:
        raise StageError("on_failure needs after, the column of the names that a job waits for")
    called = conversations.callbacks(
        {"success": on_success, "complete": on_complete, "dead": on_dead},
        {"queue": queue, "priority": priority, "tag": tag},
    )
    for columns in called.values():
        # It differs in each process, but a repeated run must have the same plan.
        columns.pop("context", None)
    return NewFlow(
        options={
            "name": values.as_name("name", name),
            "queue": values.as_queue(queue),
            "tag": values.as_text("tag", tag),
            "description": values.as_description(description),
        },
        callbacks={event: json.loads(as_object(columns)) for event, columns in called.items()},
        node=node,
        after=after,
        on_failure=After("", on_failure).on_failure,
    )


def members(rows: DataFrame, flow: NewFlow | None) -> DataFrame:
    """Give rows of jobs the columns of a graph, if the flow has one."""
    named = graph(rows, flow)
    if flow is None or not named:
        return rows
    kept = [name for name in rows.columns if name in STAGEABLE or name not in (flow.node, flow.after)]
    for name in named.keys() & kept:
        raise ConfigError(f"column {name!r} must be renamed or dropped: the flow's nodes use this name")
    return rows.select(*kept, *(column.alias(name) for name, column in named.items()))


def graph(rows: DataFrame, flow: NewFlow | None) -> dict[str, Column]:
    """Build the columns of a graph: a name, and the names it waits for, as JSON; none for a flow without names."""
    from pyspark.sql import functions as f

    if flow is None or flow.node is None:
        return {}
    names = f.array().cast("array<string>")
    if flow.after is not None:
        after = arguments.column(rows, flow.after)
        is_array = rows.select(after).schema.fields[0].dataType.typeName() == "array"
        given = after if is_array else f.when(after.cast("string") != "", f.array(after))
        names = f.coalesce(f.array_compact(given.cast("array<string>")), names)
    return {NODE: arguments.column(rows, flow.node).cast("string"), AFTER: f.to_json(names)}


def refusal(node: Column, name: str) -> Column:
    """Explain why a job cannot have this name, of the column `name`, or null."""
    from pyspark.sql import functions as f

    rule = f"column {name} must have 1 to {bulk_flows.LONGEST_NODE} characters"
    fits = f.length(node).between(1, bulk_flows.LONGEST_NODE)
    return f.when(node.isNull(), f"column {name} is null").when(~fits, rule)


def check_graph(rows: DataFrame) -> None:
    """Raise StageError for a repeated or unknown name, or a cycle."""
    found: dict[str, list[str]] = {}
    for node, after in rows.select(NODE, AFTER).toLocalIterator():
        if node in found:
            raise StageError(f"the name of a node must be unique: {node!r:.100}")
        found[node] = json.loads(after)
    edges = [(node, name) for node, names in found.items() for name in names]
    for node, name in edges:
        if name not in found:
            raise bulk_flows.unknown(node, name)
    bulk_flows.ordered(edges, str)

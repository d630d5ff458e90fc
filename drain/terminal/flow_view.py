"""Flows in the terminal: a list, a tree, and a Mermaid graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from drain.formatting import clock, duration, relative, visible
from drain.read.dependencies import Undo
from drain.read.flow_graphs import levels
from drain.read.flows import Flow, Node
from drain.terminal.fitted_table import Column, fitted_table
from drain.terminal.values import WORDS_OF_STATES

# Deeper nodes are not indented further.
_DEEPEST = 12
_COLORS = {
    "dead": "red",
    "failed": "red",
    "expired": "red",
    "failing": "red",
    "undoing": "yellow",
    "undone": "yellow",
    "stalled": "red",
    "cancelled": "yellow",
    "retrying": "yellow",
    "paused": "yellow",
}


def show_flows(flows: Sequence[Flow], now: datetime) -> None:
    """Print flows, one per line."""
    console = Console(highlight=False, markup=False)
    console.print(fitted_table(_FLOWS, [{"flow": each} for each in flows], now, console.width))


def show_flow(
    flow: Flow, nodes: Sequence[Node], callbacks: Mapping[str, str], undo: Undo | None, now: datetime
) -> None:
    """Print a flow and some of its members.

    Args:
        callbacks: Their states.
    """
    console = Console(highlight=False, markup=False)
    for title, text in _header(flow, callbacks, undo, now):
        console.print(f"{title:13}{visible(text)}", soft_wrap=True)
    rows = _tree(nodes)
    if rows:
        console.print()
        console.print(fitted_table(_NODES, rows, now, console.width))


def _header(
    flow: Flow, callbacks: Mapping[str, str], undo: Undo | None, now: datetime
) -> list[tuple[str, str]]:
    ended = (
        f"{relative(flow.ended_at, now)}, after {duration((flow.ended_at - flow.staged_at).total_seconds())}"
        if flow.ended_at
        else ""
    )
    given = [
        ("flow", f"{flow.id}{f', {flow.name}' if flow.name else ''}"),
        ("description", flow.description),
        ("state", flow.state + (f" {ended}" if ended else "")),
        ("members", progress(flow)),
        ("staged", f"{clock(flow.staged_at)}, {relative(flow.staged_at, now)}"),
        ("staged by", flow.staged_by),
        ("expires", flow.expires_at and f"{clock(flow.expires_at)}, {relative(flow.expires_at, now)}"),
        *((event, f"job {job_id}, {_word(callbacks[event])}") for event, job_id in flow.callbacks.items()),
        ("undo", undo and str(undo)),
    ]
    return [(title.replace("_", " "), text) for title, text in given if text]


def progress(flow: Flow) -> str:
    """Format `3 of 10 completed, 1 dead`."""
    return f"{flow.finished:,} of {flow.total:,} completed" + (f", {flow.dead:,} dead" if flow.dead else "")


def _tree(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Order nodes by dependency, each below the last level that it waits for."""
    depths, titles = levels(nodes), {node.id: node.title for node in nodes}
    below: dict[int | None, list[dict[str, Any]]] = {}
    for node in nodes:
        known = [above for above in node.after if above in depths]
        parent = max(known, key=lambda above: (depths[above], -above), default=None)
        others = [titles[above] for above in known if above != parent]
        row = {"node": node, "depth": depths[node.id], "others": others}
        below.setdefault(parent, []).append(row)
    rows, stack = [], below.get(None, [])[::-1]
    while stack:
        rows.append(stack.pop())
        stack += below.get(rows[-1]["node"].id, [])[::-1]
    return rows


def as_mermaid(nodes: Sequence[Node]) -> str:
    """Draw nodes and what they wait for as a Mermaid flowchart."""
    shown = {node.id for node in nodes}
    lines = [f'    n{node.id}["{_label(node)}"]' for node in nodes]
    lines += [f"    n{above} --> n{node.id}" for node in nodes for above in node.after if above in shown]
    return "\n".join(["flowchart TD", *lines])


def _label(node: Node) -> str:
    job_name = node.job_name if node.job_name != node.name else None
    return "<br/>".join(_escaped(text) for text in (node.title, job_name, _word(node.state)) if text)


def _escaped(text: str) -> str:
    return re.sub(r"[^\w .,:/-]", lambda found: f"#{ord(found[0])};", visible(text))


def _word(state: str) -> str:
    return WORDS_OF_STATES.get(state, state)


def _state(state: str) -> Text:
    return Text(_word(state), style=_COLORS.get(state, ""))


def _title(row: dict[str, Any], _now: datetime) -> str:
    also = f" (also after {', '.join(row['others'])})" if row["others"] else ""
    return f"{'  ' * min(row['depth'], _DEEPEST)}{visible(row['node'].title + also)}"


def _took(row: dict[str, Any], now: datetime) -> str:
    seconds = row["node"].seconds(now)
    return "" if seconds is None else duration(seconds)


_FLOWS = (
    Column("id", lambda row, _: str(row["flow"].id), is_number=True),
    Column("flow", lambda row, _: visible(row["flow"].name or row["flow"].description or ""), "end", share=2),
    # As `--state` takes it.
    Column("state", lambda row, _: Text(row["flow"].state, style=_COLORS.get(row["flow"].state, ""))),
    Column("completed", lambda row, _: f"{row['flow'].finished:,} of {row['flow'].total:,}", is_number=True),
    Column("dead", lambda row, _: f"{row['flow'].dead:,}", is_number=True),
    Column("staged", lambda row, now: relative(row["flow"].staged_at, now)),
)
_NODES = (
    Column("node", _title, "end", share=2, least=20),
    Column("id", lambda row, _: str(row["node"].id), is_number=True),
    Column("state", lambda row, _: _state(row["node"].state)),
    Column("attempts", lambda row, _: str(row["node"].attempts or ""), is_number=True),
    Column("took", _took, is_number=True),
    Column("job", lambda row, _: visible(row["node"].job_name or ""), "start", least=10),
)

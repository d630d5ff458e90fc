"""Flows: a list, and the graph of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from drain.contrib.web.forms import require_storable
from drain.contrib.web.paging import page_of, place_of
from drain.contrib.web.routing import STATES, page
from drain.contrib.web.views import View
from drain.formatting import visible
from drain.read import dependencies, flows, queries
from drain.read.flow_graphs import levels
from drain.read.flows import Node

_SHOWN = 200
# Flows of a page: each is counted.
_ROWS = 20
# Nodes of a graph that a reader can follow.
_DRAWN = 60
_CHARACTERS = 20
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 160, 40, 210, 56
_BOX = Markup(
    '<a href="{url}"><g class="{kind}" transform="translate({x} {y})"><title>{title}</title>'
    '<rect width="160" height="40" rx="6"/><text x="10" y="17">{text}</text>'
    '<text class="state" x="10" y="32">{state}</text></g></a>'
)
_LINE = Markup('<path d="M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"/>')
_GRAPH = Markup(
    '<svg class="flow" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group" '
    'aria-label="Graph of the flow">{parts}</svg>'
)


def _show_all(view: View) -> Mapping[str, Any]:
    place = place_of(view, (int,))
    with view.snapshot() as connection:
        found = flows.page(connection, _ROWS + 1, before=place[0] if place else None)
        now = queries.now(connection)
    return {"now": now, "page": page_of(view, found, lambda each: (each.id,), _ROWS)}


def _show(view: View) -> Mapping[str, Any]:
    name = str(view.params["flow_id"])
    require_storable([name])
    with view.snapshot() as connection:
        found = flows.find(connection, name)
        nodes = flows.nodes(connection, found.id, _SHOWN)
        callbacks = flows.states(connection, list(found.callbacks.values()))
        undo = dependencies.undo_of(connection, found.id)
        now = queries.now(connection)
    return {
        "now": now,
        "flow": found,
        "undo": undo,
        "nodes": nodes,
        "titles": {node.id: node.title for node in nodes},
        "callbacks": callbacks,
        "graph": _draw(view, nodes) if len(nodes) <= _DRAWN and any(node.after for node in nodes) else None,
    }


def _draw(view: View, nodes: Sequence[Node]) -> Markup:
    """Draw nodes in columns, each to the right of those that it waits for."""
    columns: defaultdict[int, int] = defaultdict(int)
    places: dict[int, tuple[int, int]] = {}
    for node_id, level in levels(nodes).items():
        places[node_id] = level * _ACROSS + 1, columns[level] * _DOWN + 1
        columns[level] += 1
    lines = [
        _line(places[above], places[node.id]) for node in nodes for above in node.after if above in places
    ]
    boxes = [_box(view, node, *places[node.id]) for node in nodes]
    width = max(columns) * _ACROSS + _WIDTH + 2
    height = (max(columns.values()) - 1) * _DOWN + _HEIGHT + 2
    return _GRAPH.format(width=width, height=height, parts=Markup("").join([*lines, *boxes]))


def _line(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    (x, y), (to_x, to_y) = start, end
    middle = (x + _WIDTH + to_x) // 2
    return _LINE.format(x=x + _WIDTH, y=y + _HEIGHT // 2, middle=middle, to_x=to_x, to_y=to_y + _HEIGHT // 2)


def _box(view: View, node: Node, x: int, y: int) -> Markup:
    title = visible(node.title)
    text = title if len(title) <= _CHARACTERS else f"{title[: _CHARACTERS - 1]}…"
    kind = "dead" if node.is_dead else node.state
    return _BOX.format(
        x=x,
        y=y,
        url=view.url("job", job_id=node.id),
        kind=kind,
        title=title,
        text=text,
        state=STATES.get(node.state, node.state),
    )


ROUTES = [
    page("/flows", _show_all, name="flows", template="flows.html", live="flows_live.html"),
    page("/flows/{flow_id}", _show, name="flow", template="flow.html", live="flow_live.html"),
]

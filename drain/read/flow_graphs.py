"""Graphs of flows: levels, the node that holds a flow, and the nodes after one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drain.read.flows import Node


def levels(found: Sequence[Node]) -> Mapping[int, int]:
    """Map nodes, by id, to the length of the longest path above them."""
    depths: dict[int, int] = {}
    for node in found:
        depths[node.id] = max((depths[above] + 1 for above in node.after if above in depths), default=0)
    return depths


def holding_path(found: Sequence[Node]) -> list[Node]:
    """Return the node that holds a flow, and the longest chain of nodes that wait for it; empty if none does.

    A dead one, or else the start of the longest chain of unfinished nodes.
    """
    waiting = {node.id: node for node in found if node.is_unfinished}
    heights = dict.fromkeys(waiting, 0)
    following: dict[int, int] = {}
    # Ids are higher than those of predecessors.
    for node in sorted(waiting.values(), reverse=True, key=lambda node: node.id):
        for above in node.after:
            if above in waiting and heights[node.id] >= heights[above]:
                heights[above], following[above] = heights[node.id] + 1, node.id
    starts = [node for node in waiting.values() if not any(above in waiting for above in node.after)]
    if not starts:
        return []
    at: int | None = max(starts, key=lambda node: (node.is_dead, heights[node.id], -node.id)).id
    path = []
    while at is not None:
        path.append(waiting[at])
        at = following.get(at)
    return path


def descendants(found: Sequence[Node], name: str) -> list[int]:
    """Return the ids of the node with this name and of all nodes after it; empty if there is none."""
    reached: set[int] = set()
    for node in found:
        if node.name == name or not reached.isdisjoint(node.after):
            reached.add(node.id)
    return sorted(reached)

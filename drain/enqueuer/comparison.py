"""Compares edges with the jobs that they await: met, changed, or the child's end."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import cancellations, edges, staged
from drain.tables.edges import Edge


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of one transaction; the `locked` children have to be looked at again."""

    unblocked: int = 0
    cancelled: int = 0
    followed: int = 0
    locked: Set[int] = field(default_factory=frozenset)

    @property
    def changed(self) -> bool:
        """True if other edges may have to be compared, or jobs may be due."""
        return self.unblocked + self.cancelled + self.followed > 0


def compare(connection: Connection, page: list[Edge], *, finished: bool) -> Compared:
    """Compare edges in the open transaction, and let their children run, or cancel them.

    Finished jobs stay finished and discarded ones gone, so only a death could be out of date: a job retried within this
    transaction counts as dead.

    Args:
        finished: All the awaited jobs are known to have finished.
    """
    awaited = {edge.awaited for edge in page}
    outcomes = dict.fromkeys(awaited, "finished") if finished else edges.outcomes(connection, awaited)
    met: list[Edge] = []
    followed: list[Edge] = []
    ends: dict[int, str] = {}
    left = {edge.child for edge in page if not edge.is_blocked}
    for edge in page:
        outcome = outcomes[edge.awaited]
        if edge.child in left or outcome == "unfinished":
            continue
        if outcome == "finished" or (outcome in {"dead", None} and edge.on_failure == "run"):
            met.append(edge)
        elif outcome is None:
            ends.setdefault(edge.child, f"job {edge.awaited}, which it waits for, was discarded")
        elif outcome == "dead":
            if edge.on_failure == "cancel":
                ends.setdefault(edge.child, f"job {edge.awaited}, which it waits for, is dead")
        else:
            followed.append(edge._replace(awaited=int(outcome)))
    return _apply(connection, met, followed, ends, left)


def _apply(
    connection: Connection, met: list[Edge], followed: list[Edge], ends: dict[int, str], left: set[int]
) -> Compared:
    wanted = {edge.child for edge in (*met, *followed)} | ends.keys()
    held = edges.lock_children(connection, wanted) if wanted else set()
    edges.meet(connection, [edge for edge in met if edge.child in held])
    followed = [edge for edge in followed if edge.child in held]
    edges.follow(connection, followed)
    failpoint(FailurePoint.JUDGED)
    free = {edge.child for edge in met if edge.child in held and edge.child not in ends}
    unblocked = staged.unblock(connection, free) if free else []
    kept = {child: text for child, text in ends.items() if child in held}
    cancelled = cancellations.cancel_blocked(connection, kept) if kept else []
    # Locked by another session, or cancelled since.
    rest = left | (wanted - held)
    idle = edges.idle(connection, rest | set(cancelled)) if rest or cancelled else set()
    failpoint(FailurePoint.UNBLOCKED)
    return Compared(len(unblocked), len(cancelled), len(followed), rest - idle)

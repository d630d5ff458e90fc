"""Compares edges with the jobs that they await, and lets their children run, or cancels them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import cancellations, edges, staged, unique
from drain.tables.edges import Edge, Page

_GONE = "was discarded, or is of a forward queue"


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of one transaction.

    Attributes:
        left: Children to compare again.
        awaited: Finished jobs to compare again, with locked children.
        ended: Markers that finished.
    """

    unblocked: int = 0
    cancelled: Sequence[int] = ()
    superseded: int = 0
    followed: int = 0
    left: Set[int] = field(default_factory=frozenset)
    awaited: Set[int] = field(default_factory=frozenset)
    ended: Sequence[int] = ()

    @property
    def changed(self) -> bool:
        """True if other edges may have to be compared, or jobs may be due."""
        return self.unblocked + len(self.cancelled) + self.superseded + self.followed > 0


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """Changes that follow from the ends of jobs.

    Attributes:
        ends: The explanation for each child to cancel.
        unneeded: For each child to supersede, the job that finished.
    """

    met: list[Edge] = field(default_factory=list)
    followed: list[Edge] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)
    unneeded: dict[int, int] = field(default_factory=dict)

    @property
    def children(self) -> Set[int]:
        return {edge.child for edge in (*self.met, *self.followed)} | self.ends.keys() | self.unneeded.keys()

    def of(self, children: Set[int]) -> _Verdicts:
        return _Verdicts(
            [edge for edge in self.met if edge.child in children],
            [edge for edge in self.followed if edge.child in children],
            {child: text for child, text in self.ends.items() if child in children},
            {child: by for child, by in self.unneeded.items() if child in children - self.ends.keys()},
        )


def compare(connection: Connection, found: Page) -> Compared:
    """Compare edges in the open transaction.

    The outcomes are newer than the page, and a locked child's edges are still those of the page. Only a death can be
    undone, by a retry, which then counts as later.
    """
    if not found.edges:
        return _apply(connection, _Verdicts(), frozenset(), found.released)
    page = found.edges
    outcomes = edges.outcomes(connection, {edge.awaited for edge in page})
    alarmed, doubtful = _alarmed(connection, page, outcomes)
    page = [*page, *alarmed]
    versions = {edge.child: edge.version for edge in page if edge.version is not None}
    left = {edge.child for edge in page if edge.version is None}
    verdicts = _judge([edge for edge in page if edge.child not in left], outcomes)
    wanted = verdicts.children
    held = edges.lock_children(connection, {child: versions[child] for child in wanted}) if wanted else set()
    # Locked by another session, or changed since. Only the flow's end leads to an alarmed job again.
    seen = held | left if len(alarmed) < edges.MOST_ALARMED else frozenset()
    missed = doubtful | {edge.parent for edge in alarmed if edge.child not in seen}
    # A finished job has only these edges left, but a flow's end may have 100,000.
    locked = wanted - held
    awaited = {edge.awaited for edge in page if edge.child in locked and outcomes[edge.awaited] == "finished"}
    left |= {edge.child for edge in page if edge.child in locked and edge.awaited not in awaited}
    compared = _apply(connection, verdicts.of(held), left | missed, found.released)
    return replace(compared, awaited=awaited)


def _alarmed(
    connection: Connection, page: list[Edge], outcomes: dict[int, str | None]
) -> tuple[list[Edge], Set[int]]:
    """Return the edges to flows with a dead member, as if they awaited that one; and flows to compare again."""
    dead = {
        edge.child: edge.awaited
        for edge in page
        if edge.on_failure == "hold" and outcomes[edge.awaited] == "dead"
    }
    found = edges.alarmed(connection, dead) if dead else []
    # Their versions are newer than the outcomes: a member may have been retried in between.
    ends = edges.outcomes(connection, {dead[edge.parent] for edge in found}) if found else {}
    retried = {edge.parent for edge in found if ends[dead[edge.parent]] != "dead"}
    alarmed = [edge._replace(awaited=dead[edge.parent]) for edge in found if edge.parent not in retried]
    return alarmed, retried


def _judge(page: list[Edge], outcomes: dict[int, str | None]) -> _Verdicts:
    verdicts = _Verdicts()
    for edge in page:
        outcome = outcomes[edge.awaited]
        if outcome == "unfinished":
            continue
        if outcome == "finished" and edge.on_failure == "only":
            verdicts.unneeded.setdefault(edge.child, edge.awaited)
        elif outcome == "finished" or (outcome in {"dead", None} and edge.on_failure in {"run", "only"}):
            verdicts.met.append(edge)
        elif outcome is None:
            verdicts.ends.setdefault(edge.child, f"job {edge.awaited}, which it waits for, {_GONE}")
        elif outcome == "dead":
            if edge.on_failure == "cancel":
                verdicts.ends.setdefault(edge.child, f"job {edge.awaited}, which it waits for, is dead")
        else:
            verdicts.followed.append(edge._replace(awaited=int(outcome)))
    return verdicts


def _apply(connection: Connection, verdicts: _Verdicts, rest: Set[int], released: Sequence[int]) -> Compared:
    edges.meet(connection, verdicts.met)
    edges.follow(connection, verdicts.followed)
    failpoint(FailurePoint.JUDGED)
    free = (
        {*released, *(edge.child for edge in verdicts.met)} - verdicts.ends.keys() - verdicts.unneeded.keys()
    )
    unblocked = staged.unblock(connection, free) if free else {}
    cancelled = cancellations.cancel_blocked(connection, verdicts.ends) if verdicts.ends else []
    superseded = unique.supersede_staged(connection, verdicts.unneeded)
    ended = {*rest, *cancelled, *verdicts.unneeded}
    idle = edges.idle(connection, ended) if ended else set()
    failpoint(FailurePoint.UNBLOCKED)
    # Those of another session's jobs, and of jobs with too many edges.
    left = (ended if not idle else rest) - idle
    markers = [id_ for id_, is_marker in unblocked.items() if is_marker]
    return Compared(len(unblocked), cancelled, superseded, len(verdicts.followed), left, ended=markers)

"""Compares edges with the jobs that they await, and lets their children run, or cancels them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import cancellations, edges, staged
from drain.tables.edges import Edge

_GONE = "was discarded, or is of a forward queue"


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of one transaction; the `left` children have to be compared again."""

    unblocked: int = 0
    cancelled: Sequence[int] = ()
    followed: int = 0
    left: Set[int] = field(default_factory=frozenset)

    @property
    def changed(self) -> bool:
        """True if other edges may have to be compared, or jobs may be due."""
        return self.unblocked + len(self.cancelled) + self.followed > 0


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """Changes that follow from the ends of jobs; `ends` has the explanation for each child to cancel."""

    met: list[Edge] = field(default_factory=list)
    followed: list[Edge] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)

    @property
    def children(self) -> Set[int]:
        return {edge.child for edge in (*self.met, *self.followed)} | self.ends.keys()

    def of(self, children: Set[int]) -> _Verdicts:
        return _Verdicts(
            [edge for edge in self.met if edge.child in children],
            [edge for edge in self.followed if edge.child in children],
            {child: text for child, text in self.ends.items() if child in children},
        )


def compare(connection: Connection, page: list[Edge], *, finished: bool) -> Compared:
    """Compare edges in the open transaction.

    The outcomes are newer than the page, and a locked child's edges are still those of the page. Only a death can be
    undone, by a retry, which then counts as later.

    Args:
        finished: All the awaited jobs are known to have finished.
    """
    awaited = {edge.awaited for edge in page}
    outcomes: dict[int, str | None] = dict.fromkeys(awaited, "finished")
    if not finished:
        outcomes = edges.outcomes(connection, awaited)
    versions = {edge.child: edge.version for edge in page if edge.version is not None}
    left = {edge.child for edge in page if edge.version is None}
    verdicts = _judge([edge for edge in page if edge.child not in left], outcomes)
    wanted = verdicts.children
    held = edges.lock_children(connection, {child: versions[child] for child in wanted}) if wanted else set()
    # Locked by another session, or changed since.
    return _apply(connection, verdicts.of(held), left | (wanted - held))


def _judge(page: list[Edge], outcomes: dict[int, str | None]) -> _Verdicts:
    verdicts = _Verdicts()
    for edge in page:
        outcome = outcomes[edge.awaited]
        if outcome == "unfinished":
            continue
        if outcome == "finished" or (outcome in {"dead", None} and edge.on_failure == "run"):
            verdicts.met.append(edge)
        elif outcome is None:
            verdicts.ends.setdefault(edge.child, f"job {edge.awaited}, which it waits for, {_GONE}")
        elif outcome == "dead":
            if edge.on_failure == "cancel":
                verdicts.ends.setdefault(edge.child, f"job {edge.awaited}, which it waits for, is dead")
        else:
            verdicts.followed.append(edge._replace(awaited=int(outcome)))
    return verdicts


def _apply(connection: Connection, verdicts: _Verdicts, rest: Set[int]) -> Compared:
    edges.meet(connection, verdicts.met)
    edges.follow(connection, verdicts.followed)
    failpoint(FailurePoint.JUDGED)
    free = {edge.child for edge in verdicts.met} - verdicts.ends.keys()
    unblocked = staged.unblock(connection, free) if free else []
    cancelled = cancellations.cancel_blocked(connection, verdicts.ends) if verdicts.ends else []
    ended = {*rest, *cancelled}
    idle = edges.idle(connection, ended) if ended else set()
    failpoint(FailurePoint.UNBLOCKED)
    # Those of another session's jobs, and of jobs with too many edges.
    return Compared(len(unblocked), cancelled, len(verdicts.followed), (ended if not idle else rest) - idle)

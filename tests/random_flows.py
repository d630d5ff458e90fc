"""Random graphs of jobs, with random ends, cancels, retries, open transactions and changes of the leader."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg
import pytest

from drain.enqueuer.unblocker import Unblocker
from tests.flows import Flows

_LEFT = """
SELECT child_id, awaited_id, on_failure FROM job_edges JOIN staged_jobs ON id = child_id
WHERE scheduled_at = '9999-12-29Z' AND state = 'waiting'
"""
# Of a flow that has a dead member.
_UNHEARD = """
SELECT edge.child_id, member.awaited_id FROM job_edges AS edge JOIN staged_jobs ON id = edge.child_id
    JOIN job_edges AS member ON member.child_id = edge.awaited_id JOIN dead_jobs AS dead ON dead.id = member.awaited_id
WHERE edge.state = 'waiting' AND edge.on_failure = 'only' AND member.state = 'waiting' AND member.on_failure = 'hold'
    AND edge.awaited_id = ANY (ARRAY (SELECT id FROM flows))
"""
# A superseded job did not run.
_UNNEEDED = """
SELECT id, superseded_by FROM finished_jobs
WHERE superseded_by IS NOT NULL AND NOT EXISTS (
    SELECT FROM job_edges WHERE child_id = id AND awaited_id = superseded_by AND on_failure = 'only')
"""
_FREE = """
SELECT child_id, awaited_id, on_failure, state FROM job_edges
WHERE EXISTS (SELECT FROM staged_jobs WHERE id = child_id AND scheduled_at < '9999-12-29Z')
    OR EXISTS (SELECT FROM inflight_jobs WHERE id = child_id)
    OR EXISTS (SELECT FROM finished_jobs WHERE id = child_id AND superseded_by IS NULL)
"""


class Open(NamedTuple):
    """Transaction under way, the jobs that it stages or ends, and those that it has locked."""

    connection: psycopg.Connection[Any]
    locked: set[int]
    staged: set[int]
    finished: set[int]
    died: set[int]


class Graph:
    """One random graph, in the tables of `jobs`."""

    def __init__(self, jobs: Flows, chance: random.Random) -> None:
        self.jobs = jobs
        self.chance = chance
        self.ids: list[int] = []
        self.finished: set[int] = set()
        self.died: set[int] = set()
        # Members, and the id that none of them has.
        self.flows: dict[int, set[int]] = {}
        self.openings: set[int] = set()
        self.open: list[Open] = []
        self._stack = ExitStack()

    def run(self, steps: int) -> list[str]:
        """Return what is wrong with it."""
        acts = [self.stage] * 6 + [self.finish] * 6 + [self.look] * 5 + [self.begin, self.commit, self.commit]
        acts += [self.die, self.die, self.cancel, self.retry, self.retry, self.discard, self.restart]
        acts += [self.make_flow, self.grow, self.grow, self.grow]
        with self._stack:
            for _ in range(steps):
                self.chance.choice(acts)()
                if early := self.early():
                    return early
            while self.open:
                self.commit()
        self.look(walk=False)
        return self.early() or self.left({"finished", "failed", "cancelled", "absent"})

    def stage(self) -> None:
        known = self._known(self.ids)
        parents = self.chance.sample(known, min(len(known), self.chance.randrange(4)))
        after = [(parent, self.chance.choice(["cancel", "run", "hold", "only"])) for parent in parents]
        if not self.open or self.chance.random() < 0.6:
            self.ids.append(self.jobs.stage(*after))
            return
        one = self.chance.choice(self.open)
        one.staged.add(self.jobs.stage(*after, on=one.connection))

    def make_flow(self) -> None:
        events = self.chance.sample(["success", "complete", "dead"], self.chance.randrange(4))
        one = self.chance.choice(self.open) if self.open and self.chance.random() < 0.4 else None
        with ExitStack() as stack:
            connection = one.connection if one else stack.enter_context(self.jobs.open())
            flow, *callbacks = self.jobs.flow(*events, on=connection)
            self.openings.add(flow + 1)
            members = {self.jobs.stage(flow=flow, on=connection) for _ in range(self.chance.randrange(4))}
            self.flows[flow] = members
            if one:
                one.staged.update({flow, *callbacks, *members})
            else:
                connection.commit()
                self.ids += [flow, *callbacks, *sorted(members)]

    def grow(self) -> None:
        """Let a job join a flow, in a transaction of its own or one under way."""
        flows = self._known(self.flows)
        if not flows:
            return
        flow = self.chance.choice(flows)
        known = self._known(id_ for id_ in self.ids if id_ < flow or id_ in self.flows[flow])
        after = [
            (parent, "cancel")
            for parent in self.chance.sample(known, min(len(known), self.chance.randrange(3)))
        ]
        if self.jobs.state(flow) != "blocked":
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                self.jobs.stage(*after, flow=flow)
            return
        one = self.chance.choice(self.open) if self.open and self.chance.random() < 0.5 else None
        member = self.jobs.stage(*after, flow=flow, on=one.connection if one else None)
        self.flows[flow].add(member)
        if not one:
            self.ids.append(member)
            return
        one.staged.add(member)
        one.locked.add(flow)
        one.locked.update(
            id_
            for row in one.connection.execute("SELECT on_complete FROM flows WHERE id = %s", (flow,))
            for id_ in row
            if id_
        )

    def _known(self, ids: Iterable[int]) -> list[int]:
        return [id_ for id_, state in self._states(ids) if state != "absent"]

    def _states(self, ids: Iterable[int]) -> list[tuple[int, str]]:
        ids = list(ids)
        return list(zip(ids, self.jobs.states(*ids), strict=True))

    def _pick(self, *states: str) -> int | None:
        locked = {id_ for one in self.open for id_ in one.locked}
        fit = [id_ for id_, state in self._states(self.ids) if id_ not in locked and state in states]
        return self.chance.choice(fit) if fit else None

    def _end(self, how: str) -> None:
        end = self.jobs.finish if how == "finished" else self.jobs.die
        busy = {id_ for one in self.open for id_ in one.finished | one.died}
        job_id = self._pick("waiting", "in flight")
        if job_id is None or job_id in busy:
            return
        if self.jobs.state(job_id) == "waiting":
            self.jobs.move(job_id)
        if self.open and self.chance.random() < 0.4:
            one = self.chance.choice(self.open)
            end(job_id, on=one.connection)
            getattr(one, how).add(job_id)
        else:
            end(job_id)
            getattr(self, how).add(job_id)

    def finish(self) -> None:
        self._end("finished")

    def die(self) -> None:
        self._end("died")

    def begin(self) -> None:
        if len(self.open) < 3:
            self.open.append(Open(self._stack.enter_context(self.jobs.open()), set(), set(), set(), set()))

    def commit(self) -> None:
        if not self.open:
            return
        one = self.open.pop(self.chance.randrange(len(self.open)))
        if self.chance.random() < 0.2:
            one.connection.rollback()
            return
        one.connection.commit()
        self.ids += one.staged
        self.finished |= one.finished
        self.died |= one.died

    def cancel(self) -> None:
        if (job_id := self._pick("waiting", "blocked")) is not None:
            self.jobs.cancel(job_id)
            self.died.add(job_id)

    def retry(self) -> None:
        if (job_id := self._pick("failed", "cancelled")) is not None:
            self.died.add(job_id)
            self.jobs.retry(job_id)

    def discard(self) -> None:
        if (job_id := self._pick("failed", "cancelled")) is not None:
            self.died.add(job_id)
            self.jobs.discard(job_id)

    def look(self, *, walk: bool | None = None) -> None:
        self.jobs.look(walk=self.chance.random() < 0.1 if walk is None else walk)
        self.died.update(id_ for id_, state in self._states(self.ids) if state == "cancelled")
        self.finished.update(flow for flow, state in self._states(self.flows) if state == "finished")

    def restart(self) -> None:
        """A new leader, which has no memory."""
        self.jobs.enqueuer._unblocker = Unblocker(self.jobs.enqueuer.connection)

    def early(self) -> list[str]:
        """Jobs that run although a predecessor has not ended as it should, or do not although they should."""
        found = self.jobs.connection.execute(_FREE).fetchall()
        unneeded = self.jobs.connection.execute(_UNNEEDED).fetchall()
        return [
            f"job {child} runs before job {awaited} ({on_failure}, {state})"
            for child, awaited, on_failure, state in found
            if not (state == "met" and self._has_ended(awaited, on_failure))
        ] + [f"job {child} gave way to job {by}" for child, by in unneeded]

    def _has_ended(self, awaited: int, on_failure: str) -> bool:
        if awaited in self.finished:
            return on_failure != "only" or self._has_died(awaited)
        if on_failure == "run" or self.jobs.state(awaited) == "absent":
            return awaited in self.died | self.openings
        return on_failure == "only" and self._has_died(awaited)

    def _has_died(self, awaited: int) -> bool:
        return bool(({awaited} | self.flows.get(awaited, set())) & self.died)

    def left(self, ended: set[str]) -> list[str]:
        """Edges of blocked jobs that wait although their predecessor is in one of these states."""
        return [
            f"job {child} waits for job {awaited} ({on_failure}, {state})"
            for child, awaited, on_failure in self.jobs.connection.execute(_LEFT).fetchall()
            if (state := self.jobs.state(awaited)) in ended
            and (on_failure != "hold" or state in {"finished", "absent"})
        ] + [
            f"job {child} waits although job {member} is dead"
            for child, member in self.jobs.connection.execute(_UNHEARD).fetchall()
        ]


def try_graphs(jobs: Flows, graphs: int, seed: int, steps: int = 60) -> list[str]:
    """Return what is wrong with the first wrong graph, and its number."""
    for number in range(seed, seed + graphs):
        jobs.connection.execute(
            "TRUNCATE staged_jobs, inflight_jobs, finished_jobs, dead_jobs, job_edges, flows"
        )
        if wrong := Graph(jobs, random.Random(number)).run(steps):
            return [f"graph {number}", *wrong]
    return []

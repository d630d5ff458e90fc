"""Random graphs of jobs, with random ends, cancels, retries, open transactions and changes of the leader."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg

from drain.enqueuer.unblocker import Unblocker
from tests.flows import Flows

_LEFT = """
SELECT child_id, awaited_id, on_failure FROM job_edges JOIN staged_jobs ON id = child_id
WHERE scheduled_at = '9999-12-29Z' AND state = 'waiting'
"""
_FREE = """
SELECT child_id, awaited_id, on_failure, state FROM job_edges
WHERE EXISTS (SELECT FROM staged_jobs WHERE id = child_id AND scheduled_at < '9999-12-29Z')
    OR EXISTS (SELECT FROM inflight_jobs WHERE id = child_id)
    OR EXISTS (SELECT FROM finished_jobs WHERE id = child_id)
"""


class Open(NamedTuple):
    """Transaction under way, and the jobs that it stages or ends."""

    connection: psycopg.Connection[Any]
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
        self.open: list[Open] = []
        self._stack = ExitStack()

    def run(self, steps: int) -> list[str]:
        """Return what is wrong with it."""
        acts = [self.stage] * 6 + [self.finish] * 6 + [self.look] * 5 + [self.begin, self.commit, self.commit]
        acts += [self.die, self.die, self.cancel, self.retry, self.retry, self.discard, self.restart]
        with self._stack:
            for _ in range(steps):
                self.chance.choice(acts)()
                if early := self.early():
                    return early
            while self.open:
                self.commit()
        self.jobs.look()
        return self.early() or self.left({"finished", "failed", "cancelled", "absent"})

    def stage(self) -> None:
        known = [id_ for id_ in self.ids if self.jobs.state(id_) != "absent"]
        parents = self.chance.sample(known, min(len(known), self.chance.randrange(4)))
        after = [(parent, self.chance.choice(["cancel", "run", "hold"])) for parent in parents]
        if not self.open or self.chance.random() < 0.6:
            self.ids.append(self.jobs.stage(*after))
            return
        one = self.chance.choice(self.open)
        one.staged.add(self.jobs.stage(*after, on=one.connection))

    def _pick(self, *states: str) -> int | None:
        fit = [id_ for id_ in self.ids if self.jobs.state(id_) in states]
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
            self.open.append(Open(self._stack.enter_context(self.jobs.open()), set(), set(), set()))

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

    def look(self) -> None:
        self.jobs.look(walk=self.chance.random() < 0.1)
        self.died.update(id_ for id_ in self.ids if self.jobs.state(id_) == "cancelled")

    def restart(self) -> None:
        """A new leader, which has no memory."""
        self.jobs.enqueuer._unblocker = Unblocker(self.jobs.enqueuer.connection)

    def early(self) -> list[str]:
        """Jobs that run although a predecessor has not ended as it should."""
        found = self.jobs.connection.execute(_FREE).fetchall()
        return [
            f"job {child} runs before job {awaited} ({on_failure}, {state})"
            for child, awaited, on_failure, state in found
            if not (
                state == "met"
                and (
                    awaited in self.finished
                    or (
                        awaited in self.died and (on_failure == "run" or self.jobs.state(awaited) == "absent")
                    )
                )
            )
        ]

    def left(self, ended: set[str]) -> list[str]:
        """Edges of blocked jobs that wait although their predecessor is in one of these states."""
        return [
            f"job {child} waits for job {awaited} ({on_failure}, {state})"
            for child, awaited, on_failure in self.jobs.connection.execute(_LEFT).fetchall()
            if (state := self.jobs.state(awaited)) in ended
            and (on_failure != "hold" or state in {"finished", "absent"})
        ]


def try_graphs(jobs: Flows, graphs: int, seed: int, steps: int = 60) -> list[str]:
    """Return what is wrong with the first wrong graph, and its number."""
    for number in range(seed, seed + graphs):
        jobs.connection.execute("TRUNCATE staged_jobs, inflight_jobs, finished_jobs, dead_jobs, job_edges")
        if wrong := Graph(jobs, random.Random(number)).run(steps):
            return [f"graph {number}", *wrong]
    return []

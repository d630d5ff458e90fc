"""Simulation of workers that take jobs from queues: events in virtual time, without a clock and without a store.

A worker is a server that runs one job at a time, and takes the first job of the first of its queues that may give one.
A queue gives urgent jobs before patient ones, and those of one kind in their order; its rules may bound how many of its
jobs run at a time, and how many begin in a time. What the rules of keys do is not simulated.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from drain.contrib.forecast.model import Backlog, Queue, Scene

# Upper bound of the events of a simulation, for each measured job.
_EVENTS = 20


@dataclass
class Outcome:
    """Result of one simulation.

    Attributes:
        ended_at: Time at which the last measured job ended; None if some had not ended.
        left: Number of measured jobs that had not ended.
        ended: Number of measured jobs that had ended.
        halves: Time at which half of the measured jobs that ended had done so, and their number.
        seconds: Length of the simulation.
        waits: By queue the seconds that jobs which came at random waited; of those that had not begun, so far.
        unbegun: By queue the number of jobs that came at random and had not begun.
    """

    ended_at: float | None = None
    left: int = 0
    ended: int = 0
    halves: tuple[float, int] = (0.0, 0)
    seconds: float = 0.0
    waits: dict[str, list[float]] = field(default_factory=dict)
    unbegun: dict[str, int] = field(default_factory=dict)


class _Job(NamedTuple):
    since: float
    seconds: float
    measured: bool
    arrived: bool


class _Lane:
    """Jobs of a backlog, each drawn when it is taken."""

    def __init__(self, backlog: Backlog) -> None:
        self.backlog = backlog
        self.left = backlog.jobs

    def take(self, source: random.Random) -> _Job:
        self.left -= 1
        return _Job(self.backlog.at, self.backlog.draw(source), self.backlog.measured, arrived=False)


class _QueueState:
    """State of a queue: its lanes, the jobs that run, and the tokens of its rate."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.lanes: tuple[deque[_Lane | _Job], deque[_Lane | _Job]] = (deque(), deque())
        self.running = 0
        self.tokens = queue.burst if queue.tokens is None else queue.tokens
        self.filled_at = 0.0

    def opens_in(self, now: float) -> float:
        """Seconds until the queue may give a job, as far as its pause and its rate say."""
        if now < self.queue.opens_at:
            return self.queue.opens_at - now
        rate = self.queue.rate
        if rate is None:
            return 0.0
        self.tokens = min(self.queue.burst, self.tokens + (now - self.filled_at) * rate)
        self.filled_at = now
        # Sums of fractions fall a little short of a whole token.
        return 0.0 if self.tokens >= 1 - 1e-9 else (1 - self.tokens) / rate

    @property
    def is_full(self) -> bool:
        return self.queue.running is not None and self.running >= self.queue.running

    @property
    def is_empty(self) -> bool:
        return not (self.lanes[0] or self.lanes[1])

    def take(self, source: random.Random) -> _Job:
        lane = self.lanes[0] or self.lanes[1]
        first = lane[0]
        if isinstance(first, _Job):
            lane.popleft()
            job = first
        else:
            job = first.take(source)
            if not first.left:
                lane.popleft()
        self.running += 1
        self.tokens -= 1
        return job


class Simulation:
    """One simulation of a scene.

    Args:
        scene: All that it begins with.
        source: Source of chance.
    """

    def __init__(self, scene: Scene, source: random.Random) -> None:
        self._source = source
        self._states = {queue.name: _QueueState(queue) for queue in scene.queues}
        # Time, number of the event, and what happens then.
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._now = 0.0
        # Idle workers by their queues: all with the same list are alike.
        self._idle: dict[tuple[str, ...], int] = {}
        self._waking: set[str] = set()
        self._outcome = Outcome(waits={queue.name: [] for queue in scene.queues})
        self._ends: list[float] = []
        for state in self._states.values():
            self._open(state)
        for worker in scene.workers:
            key = tuple(name for name in worker.queues if name in self._states)
            runs = self._states.get(worker.runs) if worker.runs is not None else None
            if runs is None:
                self._at(worker.busy, partial(self._free, key))
            else:
                runs.running += 1
                self._outcome.left += int(worker.measured)
                self._at(worker.busy, partial(self._end, key, runs, worker.measured))

    def run(self, *, most: int, horizon: float = float("inf")) -> Outcome:
        """Run until all measured jobs have ended, `most` of them have, or the horizon has come.

        Whatever comes, a number of events is the end: jobs that are never their queue's turn would be waited for.
        """
        outcome = self._outcome
        wanted = outcome.left
        left = _EVENTS * most if wanted or horizon < float("inf") else 0
        while left and self._events and self._events[0][0] <= horizon:
            if wanted and (not outcome.left or len(self._ends) >= most):
                break
            left -= 1
            self._now, _, act = heappop(self._events)
            act()
        _conclude(outcome, self._states, self._ends, self._now)
        return outcome

    def _at(self, time: float, act: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._events, (time, self._number, act))

    def _open(self, state: _QueueState) -> None:
        queue = state.queue
        for backlog in queue.backlog:
            if not backlog.jobs:
                continue
            self._outcome.left += backlog.jobs if backlog.measured else 0
            if backlog.per_second is None:
                self._at(backlog.at, partial(self._come, state, _Lane(backlog), backlog.patient))
            else:
                self._drip(state, backlog, backlog.jobs)
        if queue.arrivals and queue.draw is not None:
            self._next_arrival(state)

    def _drip(self, state: _QueueState, backlog: Backlog, left: int) -> None:
        begun = backlog.jobs - left
        at = backlog.at + begun / (backlog.per_second or 1.0)

        def come() -> None:
            job = _Job(at, backlog.draw(self._source), backlog.measured, arrived=False)
            self._come(state, job, backlog.patient)
            if left > 1:
                self._drip(state, backlog, left - 1)

        self._at(at, come)

    def _next_arrival(self, state: _QueueState) -> None:
        def arrive() -> None:
            draw = state.queue.draw
            assert draw is not None  # noqa: S101  (checked where the first one is made)
            self._come(
                state, _Job(self._now, draw(self._source), measured=False, arrived=True), patient=False
            )
            self._next_arrival(state)

        self._at(self._now + self._source.expovariate(state.queue.arrivals), arrive)

    def _come(self, state: _QueueState, job: _Lane | _Job, patient: bool) -> None:  # noqa: FBT001
        state.lanes[int(patient)].append(job)
        self._wake(state)

    def _free(self, key: tuple[str, ...]) -> None:
        """Give a free worker its next job, or let it wait for one."""
        for name in key:
            state = self._states[name]
            if not state.is_empty and self._may_begin(state):
                self._begin(state, key)
                return
        self._idle[key] = self._idle.get(key, 0) + 1

    def _wake(self, state: _QueueState) -> None:
        """Let idle workers look at a queue that may give a job."""
        name = state.queue.name
        for key in [key for key, idle in self._idle.items() if idle and name in key]:
            while self._idle[key] and not state.is_empty and self._may_begin(state):
                self._idle[key] -= 1
                self._begin(state, key)

    def _may_begin(self, state: _QueueState) -> bool:
        if state.is_full:
            return False
        opens_in = state.opens_in(self._now)
        if not opens_in:
            return True
        if state.queue.name not in self._waking:
            self._waking.add(state.queue.name)

            def wake() -> None:
                self._waking.discard(state.queue.name)
                self._wake(state)

            self._at(self._now + opens_in, wake)
        return False

    def _begin(self, state: _QueueState, key: tuple[str, ...]) -> None:
        job = state.take(self._source)
        if job.arrived:
            self._outcome.waits[state.queue.name].append(self._now - job.since)

        self._at(self._now + job.seconds, partial(self._end, key, state, job.measured))

    def _end(self, key: tuple[str, ...], state: _QueueState, measured: bool) -> None:  # noqa: FBT001
        state.running -= 1
        if measured:
            self._outcome.left -= 1
            self._ends.append(self._now)
        self._free(key)
        self._wake(state)


def _conclude(outcome: Outcome, states: Mapping[str, _QueueState], ends: Sequence[float], now: float) -> None:
    """Fill in what a simulation has come to."""
    outcome.seconds = now
    outcome.ended = len(ends)
    if ends:
        middle = len(ends) // 2
        outcome.halves = (ends[middle - 1] if middle else 0.0, middle)
    if not outcome.left:
        outcome.ended_at = ends[-1] if ends else 0.0
    for name, state in states.items():
        jobs = (job for lane in state.lanes for job in lane if isinstance(job, _Job) and job.arrived)
        waiting = [now - job.since for job in jobs]
        outcome.waits[name] += waiting
        outcome.unbegun[name] = len(waiting)

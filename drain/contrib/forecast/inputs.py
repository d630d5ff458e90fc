"""Facts that a forecast begins with: jobs that wait, workers, run times, arrivals and rules, of all queues involved.

They are read once, in one snapshot. Each simulation makes a scene of them with run times drawn anew, so that the range
of a forecast covers how little a few run times say.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from drain.contrib.forecast.model import Backlog, Draw, Queue, Scene, Worker
from drain.contrib.forecast.run_times import RunTimes
from drain.contrib.forecast.throughput import Claimed, Later, Waiting
from drain.read.claimed import host_and_pid
from drain.tables.rules import RulesRow

# Upper bound of the run times of a name that a simulation draws from.
_MOST_DRAWN = 2_000
# A job that has run for so many times as long as any known one says nothing about its end.
_BEYOND = 2.0


@dataclass(frozen=True)
class KnownQueue:
    """Facts about one queue.

    Attributes:
        name: Its name.
        waiting: Jobs that are due and wait for a worker.
        scheduled: Staged jobs whose time has not come.
        retrying: Jobs that wait for their next attempt.
        claimed: Jobs that processes have claimed, the oldest claim first.
        arrivals: Number of jobs that came in a second lately.
        rules: Its rules.
        tokens: Number of its jobs that may begin at once now, if it has a rate; None for as many as ever.
        paused_seconds: Seconds for which it is paused from now on; infinite for a pause without an end.
    """

    name: str
    waiting: Sequence[Waiting] = ()
    scheduled: Sequence[Later] = ()
    retrying: Sequence[Later] = ()
    claimed: Sequence[Claimed] = ()
    arrivals: float = 0.0
    rules: RulesRow | None = None
    tokens: float | None = None
    paused_seconds: float = 0.0

    @property
    def jobs(self) -> int:
        """Number of jobs that wait, run, or wait for their next attempt."""
        return sum(each.jobs for each in self.waiting) + len(self.retrying) + len(self.claimed)


@dataclass(frozen=True)
class Added:
    """Jobs that a backfill would stage.

    Attributes:
        jobs: Their number.
        job_name: Their name.
        per_second: Number of them that come due in a second; None: all at once.
    """

    jobs: int
    job_name: str
    per_second: float | None = None


@dataclass(frozen=True)
class Taken:
    """Worker that runs a job.

    Attributes:
        worker: Its queues.
        queue: Queue of the job.
        job: The job.
        seconds: Time since it began.
        is_stuck: No job like it has run for about as long lately: it is unknown when it ends.
    """

    worker: tuple[str, ...]
    queue: str
    job: Claimed
    seconds: float
    is_stuck: bool


@dataclass(frozen=True)
class Known:
    """Facts that a forecast begins with.

    Attributes:
        queue: Queue that is asked about.
        queues: Facts about it and about the queues that share its workers.
        workers: For each worker its queues, in its order; without those that run plain RQ jobs.
        plain: Number of these.
        free: Host and process id of those that could begin another job at once.
        times: Run times.
        now: Time of the facts, in seconds since 1970.
        busy_since: Time at which each process has last finished a job, in seconds since 1970.
        run_seconds: Run time of the jobs that are asked about, if a person has named it.
        added: Jobs of a backfill; None: the jobs that wait are what is asked about.
    """

    queue: str
    queues: Mapping[str, KnownQueue]
    workers: Sequence[Sequence[str]]
    times: RunTimes
    now: float
    busy_since: Mapping[str, float] = field(default_factory=dict)
    run_seconds: float | None = None
    added: Added | None = None
    plain: int = 0
    free: Collection[tuple[str, int]] = ()

    @cached_property
    def places(self) -> tuple[Sequence[Taken], Sequence[tuple[str, ...]]]:
        """Workers that run a job, and the queues of each of the free ones."""
        free = [tuple(names) for names in self.workers]
        taken: list[Taken] = []
        for facts in self.queues.values():
            seen: set[str] = set()
            for job in facts.claimed:
                place = next((at for at, names in enumerate(free) if facts.name in names), None)
                if job.process in seen or place is None:
                    continue
                seen.add(job.process)
                since = max(job.claimed_at, self.busy_since.get(job.process, 0.0))
                seconds = max(0.0, self.now - since)
                longest = max(self.samples(facts.name, job.job_name), default=0.0)
                is_stuck = seconds > _BEYOND * longest and host_and_pid(job.process) not in self.free
                taken.append(Taken(free.pop(place), facts.name, job, seconds, is_stuck))
        return taken, free

    @property
    def stuck(self) -> list[Taken]:
        """Workers whose job ends at an unknown time."""
        return [each for each in self.places[0] if each.is_stuck]

    @property
    def is_stuck(self) -> bool:
        """True if it is unknown when any of the queue's workers is free."""
        taken, free = self.places
        serving = [*free, *(each.worker for each in taken if not each.is_stuck)]
        return not any(self.queue in names for names in serving)

    def samples(self, queue: str, job_name: str | None = None) -> Sequence[float]:
        """Run times to draw from."""
        is_asked = queue == self.queue and (self.added is None or job_name == self.added.job_name)
        if self.run_seconds is not None and is_asked:
            return (self.run_seconds,)
        return self.times.of(queue, job_name)

    def scene(self, source: random.Random, *, without: bool = False) -> Scene:
        """Make the scene of one simulation.

        Args:
            source: Source of chance.
            without: Leave out the jobs that are asked about.
        """
        return _Maker(self, source, without=without).scene()


class _Maker:
    """Maker of one scene.

    Args:
        known: Facts.
        source: Source of chance.
        without: Leave out the jobs that are asked about.
    """

    def __init__(self, known: Known, source: random.Random, *, without: bool) -> None:
        self._known = known
        self._source = source
        self._without = without
        self._drawn: dict[tuple[str, str | None], Sequence[float]] = {}

    def scene(self) -> Scene:
        """Make the scene."""
        queues = [self._queue(each) for each in self._known.queues.values()]
        return Scene(queues, self._workers())

    def _is_left_out(self, queue: str) -> bool:
        return self._without and queue == self._known.queue and self._known.added is None

    def _draw(self, queue: str, job_name: str | None = None) -> Draw | None:
        """Draw run times from a sample of the known ones, as large as that: a few of them say little."""
        key = (queue, job_name)
        if key not in self._drawn:
            known = self._known.samples(queue, job_name)
            self._drawn[key] = self._source.choices(known, k=min(len(known), _MOST_DRAWN)) if known else ()
        drawn = self._drawn[key]
        return (lambda source: source.choice(drawn)) if drawn else None

    def _queue(self, facts: KnownQueue) -> Queue:
        rules = facts.rules
        bucket = rules.bucket if rules else None
        arrivals = self._draw(facts.name) if facts.arrivals else None
        paused = facts.paused_seconds
        return Queue(
            facts.name,
            self._backlog(facts),
            facts.arrivals if arrivals else 0.0,
            arrivals,
            rules.running if rules else None,
            bucket.per_second if bucket else None,
            bucket.burst if bucket else 1.0,
            facts.tokens,
            # A pause without an end: the forecast is for a queue that is resumed now.
            paused if paused != float("inf") else 0.0,
        )

    def _backlog(self, facts: KnownQueue) -> list[Backlog]:
        known, name = self._known, facts.name
        is_asked = name == known.queue and known.added is None
        parts: list[tuple[str, int, float, bool, bool]] = []
        if not self._is_left_out(name):
            parts += [(each.job_name, each.jobs, 0.0, each.patient, is_asked) for each in facts.waiting]
            parts += [(job, jobs, 0.0, False, is_asked) for job, jobs in self._behind(facts).items()]
            parts += [(job, 1, seconds, False, is_asked) for job, seconds in facts.retrying]
        parts += [(job, 1, seconds, False, False) for job, seconds in facts.scheduled]
        backlog = [
            Backlog(jobs, draw, at, patient, measured)
            for job, jobs, at, patient, measured in parts
            if (draw := self._draw(name, job)) is not None
        ]
        added = known.added
        if added is not None and name == known.queue and not self._without:
            draw = self._draw(name, added.job_name)
            if draw is not None:
                backlog.append(
                    Backlog(added.jobs, draw, patient=True, measured=True, per_second=added.per_second)
                )
        return backlog

    def _behind(self, facts: KnownQueue) -> dict[str, int]:
        """Count the jobs that a process has claimed beside the one that it runs, by name."""
        seen: set[str] = set()
        behind: defaultdict[str, int] = defaultdict(int)
        for job in facts.claimed:
            if job.process in seen:
                behind[job.job_name] += 1
            seen.add(job.process)
        return behind

    def _workers(self) -> list[Worker]:
        known = self._known
        taken, free = known.places
        made = [Worker(names) for names in free]
        for each in taken:
            if self._is_left_out(each.queue):
                made.append(Worker(each.worker))
            elif not each.is_stuck:
                is_asked = each.queue == known.queue and known.added is None
                made.append(Worker(each.worker, self._rest(each), each.queue, is_asked))
        return made

    def _rest(self, taken: Taken) -> float:
        """Draw the seconds that a running job goes on: those of one that has run for longer than it has by now."""
        samples = self._known.samples(taken.queue, taken.job.job_name)
        longer = [seconds for seconds in samples if seconds > taken.seconds]
        return self._source.choice(longer) - taken.seconds if longer else 0.0

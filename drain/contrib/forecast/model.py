"""Scene of a simulation: queues with what waits in them, and workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Seconds that the next job of a queue runs.
Draw = Callable[[random.Random], float]


class Backlog(NamedTuple):
    """Jobs of one kind that wait as the simulation begins, or come due at a time of theirs.

    Attributes:
        jobs: Number of jobs.
        draw: Run time of one of them.
        at: Seconds from the beginning until they are due.
        patient: They come after all urgent jobs of their queue.
        measured: The end of these jobs is what is asked for.
        per_second: Number of them that come due in each second from then on; None for all at once.
    """

    jobs: int
    draw: Draw
    at: float = 0.0
    patient: bool = False
    measured: bool = False
    per_second: float | None = None


@dataclass(frozen=True)
class Queue:
    """Queue of a simulation.

    Attributes:
        name: Name of the queue.
        backlog: Jobs that wait, or will come due.
        arrivals: Number of jobs that come in a second, at random.
        draw: Run time of a job that comes; None if none comes.
        running: Upper bound of the jobs that run at a time.
        rate: Number of jobs that may begin in a second, on average.
        burst: Number of jobs that may begin at once after a pause.
        tokens: Number of jobs that may begin at once now; None for as many as ever.
        opens_at: Time at which a pause of the queue ends.
    """

    name: str
    backlog: Sequence[Backlog] = ()
    arrivals: float = 0.0
    draw: Draw | None = None
    running: int | None = None
    rate: float | None = None
    burst: float = 1.0
    tokens: float | None = None
    opens_at: float = 0.0


@dataclass(frozen=True)
class Worker:
    """Worker of a simulation.

    Attributes:
        queues: Names of its queues, in the order in which it looks at them.
        busy: Seconds for which it still runs a job as the simulation begins.
        runs: Queue of that job; None if it runs none.
        measured: The end of that job is asked for, too.
    """

    queues: Sequence[str]
    busy: float = 0.0
    runs: str | None = None
    measured: bool = False


@dataclass(frozen=True)
class Scene:
    """All that a simulation begins with.

    Attributes:
        queues: Queues.
        workers: Workers.
    """

    queues: Sequence[Queue]
    workers: Sequence[Worker]

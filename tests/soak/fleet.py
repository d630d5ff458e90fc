"""All the processes, and whoever starts them again: as systemd would."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic

from programs.child import Child
from programs.processes import Processes

from tests.soak.plan import DEPLOYED, ENQUEUERS, OPERATOR, PRODUCERS, RQ_WORKERS, WORKERS
from tests.soak.producer import QUEUES

Start = Callable[[], Child]

_RESTART_SECONDS = 1.0
_BEGIN_SECONDS = 15.0
# Longer than any job, and than a worker waits for PostgreSQL.
_END_SECONDS = 60.0


class Fleet:
    """Keeps processes running, but for those that somebody holds.

    Args:
        processes: Where they run.
        starts: How each is started, by its name.
        say: Shows a line.

    Attributes:
        names: Of all of them.
        ended: How often each has ended without being told to, and not because a server was away at its start.
        hung: How often each did not end though it was told to.
    """

    def __init__(self, processes: Processes, starts: Mapping[str, Start], say: Callable[[str], None]) -> None:
        self.names = list(starts)
        self.ended: Counter[str] = Counter()
        self.hung: Counter[str] = Counter()
        self._processes = processes
        self._starts = starts
        self._say = say
        self._running: dict[str, Child] = {}
        self._started_at: dict[str, float] = {}
        self._start_at: dict[str, float] = {}
        self._end_by: dict[str, float] = {}
        self._to_replace: list[str] = []
        for name in starts:
            self.start(name)

    def child(self, name: str) -> Child | None:
        """The process of this name, if it runs and is not about to end."""
        return None if name in self._end_by else self._running.get(name)

    def kill(self, name: str) -> None:
        """SIGKILL a process, if it runs, and leave it so."""
        self._start_at.pop(name, None)
        self._end_by.pop(name, None)
        child = self._running.pop(name, None)
        if child is not None:
            self._processes.kill(child)

    def start(self, name: str) -> None:
        """Start a process that was killed."""
        self._running[name] = self._starts[name]()
        self._started_at[name] = monotonic()

    def terminate(self, name: str) -> None:
        """SIGTERM a process; it is started again once it has ended."""
        self._running[name].terminate()
        self._end_by[name] = monotonic() + _END_SECONDS

    def deploy(self) -> None:
        """Replace enqueuers and workers, one after the other."""
        self._to_replace = list(DEPLOYED)

    def pause(self, child: Child) -> Callable[[], None]:
        """SIGSTOP a process; the end resumes it, and does not count the time as its age."""
        child.pause()
        paused_at = monotonic()

        def resume() -> None:
            child.resume()
            self._started_at[child.name] += monotonic() - paused_at

        return resume

    def supervise(self) -> None:
        """Start again whatever has ended."""
        now = monotonic()
        if self._to_replace and not self._end_by and not self._start_at:
            name = self._to_replace.pop(0)
            if self.child(name) is not None:
                self.terminate(name)
        for name, child in list(self._running.items()):
            if child.exit_code() is not None:
                self._has_ended(child)
            elif self._end_by.get(name, now) < now:
                self._say(f"{name} does not end: {child.last_lines()}")
                self.hung[name] += 1
                child.kill()
        for name in [name for name, at in self._start_at.items() if at <= now]:
            del self._start_at[name]
            self.start(name)

    def _has_ended(self, child: Child) -> None:
        told = self._end_by.pop(child.name, None) is not None
        if not (self._ended_as_told(child) if told else self._could_not_start(child)):
            self.ended[child.name] += 1
            self._say(str(child.death()))
        self._processes.forget(child.name)
        del self._running[child.name]
        self._start_at[child.name] = monotonic() + _RESTART_SECONDS

    def _is_young(self, child: Child) -> bool:
        return monotonic() - self._started_at[child.name] < _BEGIN_SECONDS

    def _ended_as_told(self, child: Child) -> bool:
        # A process that is still importing has no handler for the signal yet.
        return child.exit_code() == 0 or (child.exit_code() == -signal.SIGTERM and self._is_young(child))

    def _could_not_start(self, child: Child) -> bool:
        """Whether it is a worker that found no server and said so; RQ's own says so with a traceback."""
        said = child.name in RQ_WORKERS or "| Error: " in f"| {child.last_lines()}"
        worker = child.name in (*WORKERS, *RQ_WORKERS)
        return worker and said and child.exit_code() == 1 and self._is_young(child)


def journals(directory: Path) -> list[Path]:
    """Where the applications write down which commits they were told of."""
    return [directory / f"{name.replace(' ', '-')}.journal" for name in PRODUCERS]


def programs(processes: Processes, redis_url: str, directory: Path, seed: int) -> dict[str, Start]:
    """How each process is started, by its name."""
    rq_worker = ("rq.cli", "worker", "--quiet", "--url", redis_url, *QUEUES)
    starts: dict[str, Start] = {}
    for name in ENQUEUERS:
        starts[name] = partial(processes.drain, name, "run", "--metrics-port", "0")
    for number, name in enumerate(WORKERS):
        # Each looks into another queue first.
        starts[name] = partial(processes.drain, name, "work", *QUEUES[number:], *QUEUES[:number])
    for name in RQ_WORKERS:
        starts[name] = partial(processes.module, name, *rq_worker)
    for number, (name, journal) in enumerate(zip(PRODUCERS, journals(directory), strict=True)):
        starts[name] = _producer(processes, name, seed + number, journal)
    starts[OPERATOR] = partial(processes.module, OPERATOR, "tests.soak.operator", str(seed))
    return starts


def _producer(processes: Processes, name: str, seed: int, journal: Path) -> Start:
    # One that is started again draws other numbers than before.
    numbers = count()
    return lambda: processes.module(name, "tests.soak.producer", f"{seed}.{next(numbers)}", str(journal))

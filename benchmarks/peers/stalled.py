"""Peers' steps while their processes are stopped and killed and PostgreSQL crashes.

    python -m benchmarks.peers.stalled [--quick] [--jobs 300] [--seed 17]

The counterpart of `benchmarks.fenced`. Two processes run jobs one by one. A killed process gets a successor at once, as
under a service manager, and so does a stopped one, which resumes later. An effect is outdated if another execution of
the job took effect between it and an earlier effect of its own execution.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import alone, figures
from benchmarks.peers import environments, stepped
from benchmarks.peers.bench import bench
from benchmarks.peers.peers import Peer, Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.bench import Bench
    from drain.embedded import Services

SIZES = {"jobs": (300, 20), "seed": (17, 17)}
_SLOTS = 2
_STOPPED_SECONDS = (3.0, 5.0)
_RESUMED_SECONDS = 2.0
_PAUSE_SECONDS = (1.0, 3.0)
_LOOK_SECONDS = 0.25
_PATIENCE_SECONDS = 120
_COUNT = """
SELECT (SELECT count(*) FROM ends), count(*), count(*) FILTER (WHERE times > 1), (
    SELECT count(*) FROM effects AS late WHERE EXISTS (
        SELECT FROM effects AS other WHERE other.job = late.job AND other.run <> late.run
            AND pg_xact_commit_timestamp(other.xmin) < pg_xact_commit_timestamp(late.xmin)
            AND EXISTS (SELECT FROM effects AS early WHERE early.job = late.job AND early.run = late.run
                AND pg_xact_commit_timestamp(early.xmin) < pg_xact_commit_timestamp(other.xmin)))),
    (SELECT count(*) FROM (SELECT FROM effects GROUP BY job HAVING count(DISTINCT run) > 1) AS jobs)
FROM (SELECT count(*) AS times FROM effects GROUP BY job, step) AS steps
"""


def _programs(environment: str) -> Callable[[str, int], list[Program]]:
    words = [environments.python(environment), "-m", "benchmarks.peers.stepped", f"{environment}_app", "run"]
    return lambda _, processes: [Program([*words, f"slot-{number}"]) for number in range(processes)]


DBOS = Peer("DBOS", "dbos", "dbos_app", _programs("dbos"), None, "", 0)
ABSURD = Peer("absurd", "absurd", "absurd_app", _programs("absurd"), None, "", 0)


@dataclass(frozen=True)
class System:
    """One system and the name of its job.

    Attributes:
        how: Form of its steps, and how jobs are taken over.
    """

    peer: Peer
    job: str
    how: str


_DBOS = "a process that starts under another's id recovers its jobs"
_ABSURD = f"claims of {stepped.LEASE_SECONDS} s, extended by each step"
SYSTEMS = (
    System(DBOS, "stepped", f"datasource transactions; {_DBOS}"),
    System(ABSURD, "stepped", f"steps whose writes commit before their checkpoints; {_ABSURD}"),
    System(
        replace(ABSURD, name="absurd, one transaction"),
        "stepped_in_one",
        f"`begin_step`, write, `complete_step` on the worker's connection; {_ABSURD}",
    ),
)


@dataclass
class Slots:
    """Processes of a peer, one per slot; stopped ones are replaced, resume, and are killed later."""

    place: Bench
    peer: Peer
    stack: ExitStack
    chance: random.Random
    pids: list[int] = field(default_factory=list)
    resumes: dict[int, float] = field(default_factory=dict)
    retires: dict[int, float] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def start(self, slot: int) -> int:
        program = self.peer.programs("", _SLOTS)[slot]
        return self.stack.enter_context(self.place.running([program])).pids[0]

    def disturb(self) -> None:
        fault = self.chance.choice(["stop"] * 6 + ["kill"] * 3 + ["crash PostgreSQL"])
        self.done[fault] += 1
        if fault == "crash PostgreSQL":
            self.place.services.postgres.kill()
            self.place.services.postgres.start()
            return
        slot = self.chance.randrange(_SLOTS)
        pid = self.pids[slot]
        _signal(pid, signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
        if fault == "stop":
            self.resumes[pid] = monotonic() + self.chance.uniform(*_STOPPED_SECONDS)
        self.pids[slot] = self.start(slot)

    def resume(self, *, all_: bool = False) -> None:
        for pid, at in list(self.resumes.items()):
            if all_ or monotonic() > at:
                del self.resumes[pid]
                _signal(pid, signal.SIGCONT)
                self.retires[pid] = monotonic() + _RESUMED_SECONDS
        for pid, at in list(self.retires.items()):
            if monotonic() > at:
                del self.retires[pid]
                _signal(pid, signal.SIGKILL)


def section(services: Services, *, jobs: int, seed: int) -> str:
    """Disturb each system; returns the figures as Markdown."""
    environments.make({system.peer.environment for system in SYSTEMS})
    _execute(services.postgres.url_of("postgres"), "ALTER SYSTEM SET track_commit_timestamp = on")
    services.postgres.kill()
    services.postgres.start()
    with bench(services) as place:
        rows = [[system.peer.name, *_measure(place, system, jobs, seed), system.how] for system in SYSTEMS]
    header = ("", "missing", "twice", "outdated", "jobs run by several", "jobs not ended", "faults", "how")
    return (
        f"## Steps of peers while processes are stopped and killed\n\n{figures.table(header, rows)}\n\n"
        f"{jobs:,} jobs of {stepped.STEPS} steps, {_SLOTS} processes. Outdated: committed by one execution of the job "
        "after another's first effect. A killed or stopped process gets a successor at once; the stopped one resumes "
        f"after {_STOPPED_SECONDS[0]:g} to {_STOPPED_SECONDS[1]:g} s, for {_RESUMED_SECONDS:g} s."
    )


def _measure(place: Bench, system: System, jobs: int, seed: int) -> list[str]:
    place.reset(system.peer)
    _execute(place.database_url, stepped.MAKE)
    place.fill(system.peer, system.job, jobs)
    with ExitStack() as stack:
        slots = Slots(place, system.peer, stack, random.Random(seed))
        stack.callback(slots.resume, all_=True)
        slots.pids = [slots.start(slot) for slot in range(_SLOTS)]
        last, next_fault, until = 0, 0.0, monotonic() + _PATIENCE_SECONDS
        while (ended := _count(place)[0]) < jobs and monotonic() < until:
            slots.resume()
            if ended > last:
                last, until = ended, monotonic() + _PATIENCE_SECONDS
            if ended and monotonic() > next_fault:
                slots.disturb()
                next_fault = monotonic() + slots.chance.uniform(*_PAUSE_SECONDS)
            sleep(_LOOK_SECONDS)
        # Resumed processes may still write.
        slots.resume(all_=True)
        sleep(_RESUMED_SECONDS)
    ended, effects, twice, outdated, several = _count(place)
    faults = ", ".join(f"{name} {number}" for name, number in sorted(slots.done.items()))
    found = [jobs * stepped.STEPS - effects, twice, outdated, several, jobs - ended]
    figures.say(f"  {system.peer.name}: missing, twice, outdated, several, not ended: {found}; {faults}")
    return [*(f"{number:,}" for number in found), faults]


def _signal(pid: int, number: signal.Signals) -> None:
    # It may have exited.
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _count(place: Bench) -> tuple[Any, ...]:
    with psycopg.connect(place.database_url) as connection:
        (row,) = connection.execute(_COUNT).fetchall()
    return row


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


if __name__ == "__main__":
    alone.run("peers.stalled", section, SIZES)

"""Which fault comes when: made from a seed, and the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

ENQUEUERS = ("enqueuer 1", "enqueuer 2")
WORKERS = ("worker 1", "worker 2", "worker 3")
RQ_WORKERS = ("rq worker 1", "rq worker 2")
PRODUCERS = ("producer 1", "producer 2")
OPERATOR = "operator"
REDIS, POSTGRES = "Redis", "PostgreSQL"
FLEET = "programs"
# Faults stop these and break their connections, but never end them: their memory shows leaks.
ENDURING = ("enqueuer 2", "worker 3", "producer 2")
SESSIONS = ("drain run", "drain work", "drain job", "drain lease", "producer", "operator", "everybody")

_PAUSE_SECONDS = (0.3, 1.7)


class Kind(StrEnum):
    """What can be done to a process, a server or a session."""

    KILL = "killed"
    MACHINE = "killed with all of its processes"
    TERMINATE = "ended by SIGTERM"
    PAUSE = "stopped for a while"
    LONG_PAUSE = "stopped for longer than a lease"
    HORSE = "killed, but not its parent"
    FLUSH = "flushed"
    CRASH = "killed, back with what it had saved"
    EMPTY = "killed, back with nothing"
    RESTART = "restarted in good order"
    DISCONNECT = "sessions ended"
    PROMOTE = "replaced by its replica"
    FULL = "has a full disk"
    CLOCK = "steps its clock ahead"
    SLOW = "behind a slow network"
    MIGRATE = "migrated under load"
    DEPLOY = "replaced one after the other"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at: Seconds after the beginning.
        kind: What is done.
        target: To whom.
        seconds: How long whatever is stopped or killed stays so.
    """

    at: float
    kind: Kind
    target: str
    seconds: float

    @property
    def whom(self) -> str:
        """The target without its number."""
        return self.target.rstrip(" 0123456789")

    @property
    def name(self) -> str:
        """Whom it befell, and how."""
        return f"{self.whom} {self.kind}"


@dataclass(frozen=True, slots=True)
class _Choice:
    weight: float
    kind: Kind
    targets: tuple[str, ...]
    seconds: tuple[float, float] = (0, 0)


_PROGRAMS = (*ENQUEUERS, *WORKERS, *RQ_WORKERS, *PRODUCERS, OPERATOR)
_MORTAL_WORKERS = tuple(name for name in (*WORKERS, *RQ_WORKERS) if name not in ENDURING)
# A deploy replaces these.
DEPLOYED = (*(name for name in ENQUEUERS if name not in ENDURING), *_MORTAL_WORKERS)
_CHOICES = (
    _Choice(5, Kind.KILL, tuple(name for name in _PROGRAMS if name not in ENDURING), (0, 2)),
    _Choice(3, Kind.MACHINE, _MORTAL_WORKERS, (0, 2)),
    _Choice(2, Kind.TERMINATE, DEPLOYED, (0, 2)),
    _Choice(4, Kind.PAUSE, _PROGRAMS, (0.2, 1.8)),
    _Choice(1, Kind.LONG_PAUSE, ENQUEUERS, (2.5, 7)),
    _Choice(4, Kind.LONG_PAUSE, (*WORKERS, *RQ_WORKERS), (2.5, 7)),
    # A leader that stands still for this long loses its session, and with it its office.
    _Choice(0.7, Kind.LONG_PAUSE, ENQUEUERS, (16, 22)),
    _Choice(3, Kind.HORSE, _MORTAL_WORKERS),
    _Choice(2, Kind.FLUSH, (REDIS,)),
    _Choice(1.5, Kind.CRASH, (REDIS,), (0, 3)),
    _Choice(1, Kind.EMPTY, (REDIS,), (0, 3)),
    # Longer than anybody waits for an answer.
    _Choice(1, Kind.PAUSE, (REDIS,), (0.5, 8)),
    _Choice(1.5, Kind.CRASH, (POSTGRES,), (0, 3)),
    _Choice(0.7, Kind.RESTART, (POSTGRES,)),
    _Choice(1, Kind.PAUSE, (POSTGRES,), (0.5, 6)),
    _Choice(3, Kind.DISCONNECT, SESSIONS),
    _Choice(0.7, Kind.PROMOTE, (POSTGRES,), (0, 3)),
    _Choice(1, Kind.FULL, (POSTGRES, REDIS), (2, 8)),
    _Choice(0.7, Kind.CLOCK, (POSTGRES,)),
    _Choice(1, Kind.SLOW, (POSTGRES, REDIS), (1, 6)),
    _Choice(1, Kind.MIGRATE, (POSTGRES,)),
    _Choice(0.5, Kind.DEPLOY, (FLEET,), (10, 20)),
)


def plan(seed: int) -> Iterator[Fault]:
    """Yield faults in their order, without end."""
    chance = random.Random(seed)
    at = 2.0
    while True:
        at += chance.uniform(*_PAUSE_SECONDS)
        (choice,) = chance.choices(_CHOICES, [choice.weight for choice in _CHOICES])
        target = chance.choice(choice.targets)
        yield Fault(at, choice.kind, target, chance.uniform(*choice.seconds))


def names() -> list[str]:
    """Names of all faults that a plan may have."""
    return sorted({Fault(0, each.kind, target, 0).name for each in _CHOICES for target in each.targets})

"""Chooses who goes on; the choices are the schedule, which can be repeated and shrunk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tests.interleavings.gate import Gate
from tests.interleavings.programs import Program

_MOST_STEPS = 400


@dataclass
class Scene:
    """What runs together, and what must hold.

    Attributes:
        programs: By name; made anew for each schedule.
        faults: What may happen otherwise, by name, and how often.
        restarts: Programs that begin again once they are killed.
        check: Yields what is wrong after a step.
        passing: Requests that concern no other program, and are not held.
        finish: Completes all work, and yields what is wrong at the end.
    """

    programs: Mapping[str, Program]
    check: Callable[[], Iterable[str]]
    finish: Callable[[], Iterable[str]]
    faults: Mapping[str, tuple[int, Callable[[], None]]] = field(default_factory=dict)
    passing: re.Pattern[bytes] = re.compile(b"$^")
    kills: int = 1
    restarts: frozenset[str] = frozenset()


class Outcome(NamedTuple):
    """A schedule and what it broke, if anything."""

    choices: tuple[str, ...]
    problem: str | None


def run(gate: Gate, scene: Scene, seed: int, repeated: Sequence[str] | None = None) -> Outcome:
    """Run a schedule to the end: the seed's, or repeat one."""
    choose = _Repeats(repeated) if repeated is not None else _Seeded(Random(seed))
    gate.passing = scene.passing
    actors = {name: gate.add(name, program) for name, program in scene.programs.items()}
    left = {name: times for name, (times, _) in scene.faults.items()} | {"kill": scene.kills}
    chosen: list[str] = []
    while len(chosen) < _MOST_STEPS:
        ready = [name for name, actor in actors.items() if actor.can_go_on]
        if not ready:
            if all(actor.has_ended for actor in actors.values()):
                break
            # The server ends a deadlock.
            if not any(actor.is_blocked for actor in actors.values()):
                for actor in actors.values():
                    if actor.is_paused:
                        actor.retire()
            gate.settle(actors.values())
            continue
        choice = choose(ready, _faults(ready, left))
        chosen.append(choice)
        verb, _, name = choice.partition(": ")
        if verb in ("kill", "kill after"):
            left["kill"] -= 1
            gate.kill(actors[name], is_answer_lost=verb == "kill after")
            if name in scene.restarts:
                actors[name] = gate.add(name, scene.programs[name])
        elif choice in scene.faults:
            left[choice] -= 1
            scene.faults[choice][1]()
        else:
            actors[choice].release()
        gate.settle(actors.values())
        for problem in scene.check():
            return Outcome(tuple(chosen), problem)
    for actor in actors.values():
        assert actor.has_ended, (actor.name, len(chosen), chosen[-6:], vars(actor))
        if actor.failure is not None:
            return Outcome(tuple(chosen), f"{actor.name}: {actor.failure!r}")
    for problem in scene.finish():
        return Outcome(tuple(chosen), problem)
    return Outcome(tuple(chosen), None)


def _faults(ready: Sequence[str], left: Mapping[str, int]) -> list[str]:
    found = [name for name, times in left.items() if times and name != "kill"]
    if left["kill"]:
        found += [f"{verb}: {name}" for name in ready for verb in ("kill", "kill after")]
    return found


class _Seeded:
    """Half of the seeds choose evenly; the others let one program run until a random point, as priorities do."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._is_even = random.random() < 0.5
        self._fault = random.choice([0.01, 0.03, 0.1])
        self._change = random.choice([0.02, 0.05, 0.15])
        self._last = ""

    def __call__(self, ready: list[str], faults: list[str]) -> str:
        if faults and self._random.random() < self._fault:
            return self._random.choice(faults)
        if self._is_even or self._last not in ready or self._random.random() < self._change:
            self._last = self._random.choice(ready)
        return self._last


class _Repeats:
    """Repeats choices that are possible, then lets one after the other go on to its end."""

    def __init__(self, choices: Sequence[str]) -> None:
        self._left = list(choices)

    def __call__(self, ready: list[str], faults: list[str]) -> str:
        while self._left:
            choice = self._left.pop(0)
            if choice in ready or choice in faults:
                return choice
        return ready[0]


def shrink(outcome: Outcome, repeat: Callable[[Sequence[str]], Outcome], tries: int = 300) -> Outcome:
    """Return a shorter schedule that breaks the same: without what can be left out, in ever smaller parts."""
    best, size = list(outcome.choices), max(1, len(outcome.choices) // 2)
    while size and tries:
        at = 0
        while at < len(best) and tries:
            tries -= 1
            without = best[:at] + best[at + size :]
            if _kind(repeat(without).problem) == _kind(outcome.problem):
                best = without
            else:
                at += size
        size //= 2
    return Outcome(tuple(best), outcome.problem)


def _kind(problem: str | None) -> str:
    return "".join(letter for letter in problem or "" if not letter.isdigit())

"""Chooses the next step; the choices are the schedule, which can be repeated and shrunk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tests.interleavings.gate import Gate
from tests.interleavings.programs import Program

_MOST_STEPS = 600
_KILL, _KILL_AFTER = "kill", "execute, then kill"


@dataclass
class Scene:
    """Programs, faults and invariants.

    Attributes:
        programs: By name; new for each schedule.
        faults: What may happen otherwise, by name, and how often.
        restarts: Programs that begin again once they are killed.
        check: Yields problems after a step.
        passing: Requests that concern no other program, and are not held.
        finish: Completes all work, and yields problems at the end.
    """

    programs: Mapping[str, Program]
    check: Callable[[], Iterable[str]]
    finish: Callable[[], Iterable[str]]
    faults: Mapping[str, tuple[int, Callable[[], None]]] = field(default_factory=dict)
    passing: re.Pattern[bytes] = re.compile(b"$^")
    kills: int = 1
    restarts: frozenset[str] = frozenset()


class Outcome(NamedTuple):
    """A schedule, and the problem that it found."""

    choices: tuple[str, ...]
    problem: str | None


def run(gate: Gate, scene: Scene, seed: int, repeated: Sequence[str] | None = None) -> Outcome:
    """Run a schedule to the end: the seed's, or repeat one."""
    gate.passing = scene.passing
    play = _Play(gate, scene)
    choose = _Repeats(repeated) if repeated is not None else _Seeded(Random(seed))
    chosen: list[str] = []
    problem = None
    while problem is None and len(chosen) < _MOST_STEPS and (ready := play.ready()):
        chosen.append(choose(ready, play.faults(ready)))
        play.act(chosen[-1])
        problem = next(iter(scene.check()), None)
    play.end()
    problem = problem or next(play.failures(), None) or next(iter(scene.finish()), None)
    return Outcome(tuple(chosen), problem)


class _Play:
    """The actors of a schedule, and the faults that are left."""

    def __init__(self, gate: Gate, scene: Scene) -> None:
        self._gate, self._scene = gate, scene
        self._actors = {name: gate.add(name, program) for name, program in scene.programs.items()}
        self._left = {name: times for name, (times, _) in scene.faults.items()}
        self._kills = scene.kills

    def ready(self) -> list[str]:
        """Return the programs that can continue; none once all have ended."""
        actors = self._actors.values()
        while not all(actor.has_ended for actor in actors):
            if ready := [actor.name for actor in actors if actor.can_go_on]:
                return ready
            # The server ends a deadlock; without one, nothing is left to do.
            if not any(actor.is_blocked for actor in actors):
                for actor in actors:
                    if actor.is_paused:
                        actor.retire()
            self._gate.settle(actors)
        return []

    def faults(self, ready: Sequence[str]) -> list[str]:
        """Return what else may happen."""
        found = [name for name, times in self._left.items() if times]
        if self._kills:
            found += [f"{verb}: {name}" for name in ready for verb in (_KILL, _KILL_AFTER)]
        return found

    def act(self, choice: str) -> None:
        """Take a step."""
        verb, _, name = choice.partition(": ")
        if name:
            self._kills -= 1
            self._gate.kill(self._actors[name], is_answer_lost=verb == _KILL_AFTER)
            if name in self._scene.restarts:
                self._actors[name] = self._gate.add(name, self._scene.programs[name])
        elif choice in self._scene.faults:
            self._left[choice] -= 1
            self._scene.faults[choice][1]()
        else:
            self._actors[choice].release()
        self._gate.settle(self._actors.values())

    def end(self) -> None:
        """Kill programs that have not ended, after a problem or too many steps."""
        for actor in self._actors.values():
            if not actor.has_ended:
                self._gate.kill(actor, is_answer_lost=False)

    def failures(self) -> Iterator[str]:
        """Yield the errors that no program expects."""
        for actor in self._actors.values():
            if actor.failure is not None:
                yield f"{actor.name}: {actor.failure!r}"


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

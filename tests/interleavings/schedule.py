"""Chooses the next step; the choices are the schedule, which can be repeated and shrunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from tests.interleavings.gate import Gate
from tests.interleavings.programs import Program

_MOST_STEPS = 600
_KILL, _KILL_AFTER = "kill", "execute, then kill"
# How often a program stalls; a leader takes many more steps than others.
_STALLS, _STALLS_OF = (0.1, 0.5), {"leader": (0.01, 0.1)}


class Fault(NamedTuple):
    """What may happen to a scene, a number of times.

    Attributes:
        act: Lets it happen.
        matters: False while it would change nothing.
    """

    times: int
    act: Callable[[], None]
    matters: Callable[[], bool] = lambda: True


@dataclass
class Scene:
    """Programs, faults and invariants.

    Attributes:
        programs: By name; new for each schedule.
        faults: By name.
        restarts: Programs that begin again once they are killed.
        check: Yields problems after a step that may have changed rows.
        passes: True for requests that concern no other program, and are not held.
        finish: Completes all work, and yields problems at the end.
    """

    programs: Mapping[str, Program]
    check: Callable[[], Iterable[str]]
    finish: Callable[[], Iterable[str]]
    faults: Mapping[str, Fault] = field(default_factory=dict)
    passes: Callable[[bytes], bool] = lambda _: False
    kills: int = 1
    restarts: frozenset[str] = frozenset()


class Outcome(NamedTuple):
    """A schedule, and the problem that it found."""

    choices: tuple[str, ...]
    problem: str | None


def run(gate: Gate, scene: Scene, seed: int, repeated: Sequence[str] | None = None) -> Outcome:
    """Run a schedule to the end: the seed's, or repeat one."""
    gate.passes = scene.passes
    play = _Play(gate, scene)
    choose = _Repeats(repeated) if repeated is not None else _Seeded(Random(seed))
    chosen: list[str] = []
    problem, checked = None, -1
    while problem is None and len(chosen) < _MOST_STEPS and (ready := play.ready()):
        chosen.append(choose(ready, partial(play.faults, ready)))
        play.act(chosen[-1])
        if gate.commits != checked:
            checked = gate.commits
            problem = next(iter(scene.check()), None)
    play.end()
    problem = problem or next(play.failures(), None) or next(iter(scene.finish()), None)
    return Outcome(tuple(chosen), problem)


class _Play:
    """The actors of a schedule, and the faults that are left."""

    def __init__(self, gate: Gate, scene: Scene) -> None:
        self._gate, self._scene = gate, scene
        self._actors = {name: gate.add(name, program) for name, program in scene.programs.items()}
        self._left = {name: fault.times for name, fault in scene.faults.items()}
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
        """Return what else may happen, as often as it may."""
        faults = self._scene.faults
        found = [name for name, times in self._left.items() if faults[name].matters() for _ in range(times)]
        if self._kills:
            found += [f"{verb}: {name}" for name in ready for verb in (_KILL, _KILL_AFTER)]
        return found

    def act(self, choice: str) -> None:
        """Take a step."""
        verb, _, name = choice.partition(": ")
        if name:
            self._kills -= 1
            self._gate.events += 1
            self._gate.kill(self._actors[name], is_answer_lost=verb == _KILL_AFTER)
            if name in self._scene.restarts:
                self._actors[name] = self._gate.add(name, self._scene.programs[name])
        elif choice in self._scene.faults:
            self._left[choice] -= 1
            self._gate.events += 1
            self._gate.commits += 1
            self._scene.faults[choice].act()
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
    """Lets the program of the highest priority run, until it stalls and gets the lowest one.

    A fault happens as a program stalls, because that is when it matters: a lease expires while a worker holds its
    claim. A program that seldom stalls runs through while others wait in between. A fourth of the seeds choose evenly.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._is_even = random.random() < 0.25
        self._lowest = 0.0
        self._priorities: dict[str, float] = {}
        self._stalls: dict[str, float] = {}

    def __call__(self, ready: list[str], find_faults: Callable[[], list[str]]) -> str:
        for name in ready:
            if name not in self._priorities:
                self._priorities[name] = self._random.random()
                kind = name.partition(" ")[0]
                self._stalls[name] = self._random.choice(_STALLS_OF.get(kind, _STALLS))
        program = max(ready, key=self._priorities.__getitem__)
        if self._random.random() < (0.1 if self._is_even else self._stalls[program]):
            self._lowest -= 1
            self._priorities[program] = self._lowest
            faults = find_faults()
            if faults and self._random.random() < 0.6:
                return self._fault(faults)
            program = max(ready, key=self._priorities.__getitem__)
        return self._random.choice(ready) if self._is_even else program

    def _fault(self, faults: list[str]) -> str:
        kills = [name for name in faults if ": " in name]
        others = [name for name in faults if ": " not in name]
        return self._random.choice([*others, self._random.choice(kills)] if kills else others)


class _Repeats:
    """Repeats choices that are possible, then lets one after the other go on to its end."""

    def __init__(self, choices: Sequence[str]) -> None:
        self._left = list(choices)

    def __call__(self, ready: list[str], find_faults: Callable[[], list[str]]) -> str:
        while self._left:
            choice = self._left.pop(0)
            if choice in ready or choice in find_faults():
                return choice
        return ready[0]


def shrink(outcome: Outcome, repeat: Callable[[Sequence[str]], Outcome], tries: int) -> Outcome:
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

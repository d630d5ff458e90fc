"""Explores every interleaving of some programs, breadth first: the trace to a violation is as short as possible.

A program is a generator that yields atoms and is sent their answers. Generators cannot be copied, so a program's state
is its answers so far, replayed. States with the same lines and local variables are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, NamedTuple, Protocol

from proof.postgres import Blocked, ConnectionLostError, Database, DeadlockError

Program = Callable[[], Generator["Atom", Any, None]]
Lists = tuple[tuple[int, int], ...]
# Instead of an answer: the statement keeps waiting.
_WAIT = object()


class Violation(Exception):  # noqa: N818
    """An invariant does not hold."""


class Atom(Protocol):
    """One indivisible action; `step` returns its possible answers, none if it must wait."""

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Act on the world."""
        ...


class _Raise(NamedTuple):
    """Answer that is raised in the program."""

    error: type[Exception]


@dataclass
class World:
    """State of everything but the programs.

    Attributes:
        queue: Redis list of job and delivery number; workers pop the first.
        faults: How many of each kind may still happen.
        started: Job, delivery and token of each claim, for invariants.
        held: Delivery of each busy worker.
        notes: Anything else, such as memory that programs share.
    """

    database: Database
    queue: Lists = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    started: frozenset[tuple[int, int, int]] = frozenset()
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    notes: Mapping[str, Hashable] = field(default_factory=dict)

    def copy(self) -> World:
        """Copy what changes in place."""
        return World(self.database.copy(), self.queue, self.faults, self.started, self.held, self.notes)

    def key(self) -> object:
        """Hashable state."""
        faults, held = tuple(sorted(self.faults.items())), tuple(sorted(self.held.items()))
        notes = tuple(sorted(self.notes.items()))
        return self.database.key(), self.queue, faults, self.started, held, notes

    def spend(self, kind: str) -> None:
        """Use a fault."""
        self.faults = {**self.faults, kind: self.faults[kind] - 1}


class _Node(NamedTuple):
    answers: tuple[Any, ...]
    atom: Atom | None


class _Programs:
    """States of programs as small numbers."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self.programs = programs
        self.nodes: list[_Node] = []
        self._numbers: dict[object, int] = {}
        self._next: dict[object, int] = {}
        self.starts = tuple(self._number(name, ()) for name in programs)

    def after(self, name: str, node: int, answer: Any) -> int:
        """Return the state after an answer."""
        if answer is _WAIT:
            return node
        step = (node, repr(answer))
        if step not in self._next:
            self._next[step] = self._number(name, (*self.nodes[node].answers, answer))
        return self._next[step]

    def _number(self, name: str, answers: tuple[Any, ...]) -> int:
        program = self.programs[name]()
        atom: Atom | None = None
        try:
            atom = next(program)
            for answer in answers:
                atom = program.throw(answer.error) if isinstance(answer, _Raise) else program.send(answer)
            place: object = tuple(_places(program))
        except StopIteration:
            atom, place = None, "end"
        except ConnectionLostError:
            return self.starts[list(self.programs).index(name)]
        program.close()
        number = self._numbers.setdefault((name, place), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(_Node(answers, atom))
        return number


def _places(program: Any) -> Iterator[object]:
    while isinstance(program, GeneratorType):
        frame = program.gi_frame
        assert frame is not None
        yield frame.f_lasti, repr(sorted(frame.f_locals.items()))
        program = program.gi_yieldfrom


@dataclass(frozen=True)
class Scenario:
    """Programs, faults, and what must hold.

    Attributes:
        start: Makes the first world.
        invariants: Each raises `Violation`, in every state.
        goal: Must stay reachable without faults from every state.
        environment: Steps of the clock: what happens, whether it is a fault, and the changed world.
        is_idle: True for an atom at which a worker holds no delivery.
    """

    programs: Mapping[str, Program]
    start: Callable[[], World]
    invariants: tuple[Callable[[World], None], ...]
    goal: Callable[[World], bool]
    environment: Callable[[World], Iterator[tuple[str, bool, World]]]
    is_idle: Callable[[Atom], bool]
    is_killable: Callable[[str], bool]


class Result(NamedTuple):
    """Outcome of an exploration; `problem` is None if all holds, and `trace` leads to it."""

    states: int
    depth: int
    problem: str | None
    trace: tuple[str, ...]


_State = tuple[World, tuple[int, ...]]


def explore(scenario: Scenario, most: int = 1_000_000) -> Result:  # noqa: C901
    """Check every state that can be reached; stop at the first that breaks an invariant."""
    programs = _Programs(scenario.programs)
    first: _State = (scenario.start(), programs.starts)
    numbers = {_key(first): 0}
    cause: list[tuple[int, str, int]] = [(-1, "", 0)]
    # For the goal: the states that lead to each state without a fault.
    before: list[list[int]] = [[]]
    good: list[int] = []
    todo = deque([(0, first)])
    while todo:
        number, state = todo.popleft()
        if scenario.goal(state[0]):
            good.append(number)
        try:
            for words, is_fault, following in _steps(scenario, programs, state):
                _forget_idle(scenario, programs, following)
                key = _key(following)
                found = numbers.get(key)
                if found is None:
                    found = numbers[key] = len(numbers)
                    cause.append((number, words, cause[number][2] + 1))
                    before.append([])
                    for invariant in scenario.invariants:
                        try:
                            invariant(following[0])
                        except Violation as error:
                            return Result(len(numbers), cause[-1][2], str(error), _trace(cause, found))
                    todo.append((found, following))
                    if len(numbers) > most:
                        raise OverflowError(f"more than {most:,} states")
                if not is_fault:
                    before[found].append(number)
        except Violation as error:
            return Result(len(numbers), cause[number][2] + 1, str(error), (*_trace(cause, number), "…"))
    depth = max(each[2] for each in cause)
    stuck = _first_stuck(before, good)
    if stuck is not None:
        return Result(len(numbers), depth, "the goal is out of reach", _trace(cause, stuck))
    return Result(len(numbers), depth, None, ())


def _key(state: _State) -> object:
    return state[0].key(), state[1]


def _first_stuck(before: list[list[int]], good: list[int]) -> int | None:
    reaching = set(good)
    todo = list(good)
    while todo:
        for number in before[todo.pop()]:
            if number not in reaching:
                reaching.add(number)
                todo.append(number)
    return next((number for number in range(len(before)) if number not in reaching), None)


def _trace(cause: list[tuple[int, str, int]], number: int) -> tuple[str, ...]:
    words = []
    while number > 0:
        number, word, _ = cause[number]
        words.append(word)
    return tuple(reversed(words))


def _steps(scenario: Scenario, programs: _Programs, state: _State) -> Iterator[tuple[str, bool, _State]]:  # noqa: C901
    world, nodes = state
    names = list(scenario.programs)
    waits: dict[str, str] = {}
    for place, name in enumerate(names):
        atom = programs.nodes[nodes[place]].atom
        if atom is None:
            continue
        for words, is_fault, after, answer in _acts(world, name, atom, waits):
            yield words, is_fault, (after, _put(nodes, place, programs.after(name, nodes[place], answer)))
        if world.faults.get("kill") and scenario.is_killable(name):
            after = _with_fault(world, "kill")
            after.database.disconnect(name)
            yield f"{name}: killed", True, (after, _put(nodes, place, programs.starts[place]))
    for name in _deadlocked(waits):
        after = world.copy()
        after.database.roll_back(name)
        place = names.index(name)
        answer = _Raise(DeadlockError)
        yield (
            f"{name}: deadlock",
            False,
            (after, _put(nodes, place, programs.after(name, nodes[place], answer))),
        )
    for words, is_fault, after in scenario.environment(world):
        yield words, is_fault, (after, nodes)
    if world.faults.get("duplicate") and world.queue:
        after = _with_fault(world, "duplicate")
        after.queue = (*world.queue, world.queue[0])
        yield "a delivery is listed twice", True, (after, nodes)
    if world.faults.get("flush"):
        after = _with_fault(world, "flush")
        after.queue = ()
        yield "Redis loses everything", True, (after, nodes)
    if world.faults.get("crash"):
        for kept in range(len(world.database.unflushed) + 1):
            after = _with_fault(world, "crash")
            after.database.crash(kept, frozenset(names), is_last=not after.faults["crash"])
            lost = len(world.database.unflushed) - kept
            yield f"PostgreSQL crashes and loses {lost} commits", True, (after, nodes)


def _acts(
    world: World, name: str, atom: Atom, waits: dict[str, str]
) -> Iterator[tuple[str, bool, World, Any]]:
    after = world.copy()
    try:
        answers = atom.step(after, name)
    except Violation:
        raise
    except Exception as error:  # noqa: BLE001
        yield f"{name}: {atom}: {type(error).__name__}", False, after, _Raise(type(error))
        return
    if isinstance(answers, Blocked):
        waits[name] = answers.owner
        if after.key() != world.key():
            # The wait begins, with the statement's snapshot.
            yield f"{name}: {atom} waits for {answers.owner}", False, after, _WAIT
        return
    for answer in answers:
        yield f"{name}: {atom} -> {answer}", False, after, answer
    if answers and world.faults.get("answer"):
        lost = _with_fault(after, "answer")
        lost.database.disconnect(name)
        yield f"{name}: {atom}, its answer is lost", True, lost, _Raise(ConnectionLostError)


def _with_fault(world: World, kind: str) -> World:
    after = world.copy()
    after.spend(kind)
    return after


def _forget_idle(scenario: Scenario, programs: _Programs, state: _State) -> None:
    world, nodes = state
    for name, node in zip(scenario.programs, nodes, strict=True):
        atom = programs.nodes[node].atom
        if name in world.held and atom is not None and scenario.is_idle(atom):
            world.held = {other: held for other, held in world.held.items() if other != name}


def _put(nodes: tuple[int, ...], place: int, node: int) -> tuple[int, ...]:
    return (*nodes[:place], node, *nodes[place + 1 :])


def _deadlocked(waits: Mapping[str, str]) -> Iterator[str]:
    for name in waits:
        at, seen = name, {name}
        while at in waits:
            at = waits[at]
            if at == name:
                yield name
            if at in seen:
                break
            seen.add(at)

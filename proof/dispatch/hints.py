"""Redis, and the attempts of processes: registrations, own lists, and what an attempt must not do when it begins."""

from __future__ import annotations

from typing import Any, NamedTuple

from proof.atoms import Act
from proof.checker import Violation, World
from proof.dispatch.statements import INFLIGHT, Entry, Statements, lease_of


def note(world: World, **changes: Any) -> None:
    """Change notes."""
    world.notes = {**world.notes, **changes}


def listed(world: World, me: str) -> tuple[Entry, ...]:
    """Return a process' own list in Redis."""
    lists: Any = world.notes["lists"]
    return tuple(entry for owner, entry in lists if owner == me)


def push(me: str, entry: Entry, statements: Statements) -> Act:
    """Push to a process' own list, in one script, if it is registered; answer whether it is known to be dead."""

    def act(world: World, process: str) -> list[Any]:
        registered: Any = world.notes["registered"]
        lists: Any = world.notes["lists"]
        dead: Any = world.notes["dead"]
        if me in registered:
            note(world, lists=(*lists, (me, entry)))
        return [
            me in dead or (me not in registered and statements.broken == "revoke a lease that was not pushed")
        ]

    return Act(f"push {tuple(entry)} to {me}", act)


def begin(me: str, entry: Entry, statements: Statements) -> Act:
    """Look at the clock, and begin."""

    def act(world: World, process: str) -> list[Any]:
        if (
            lease_of(*entry) in world.database.lapsed
            and statements.broken != "begin without a look at the clock"
        ):
            return [False]
        row = world.database.committed.get((INFLIGHT, entry.job))
        is_known = row is not None and (row.token, row.worker) == (entry.token, me)
        if lease_of(*entry) in world.database.lapsed or (
            not is_known and statements.broken != "move without a flush"
        ):
            raise Violation("a process begins a job that it does not hold")
        start_attempt(world, me, entry)
        return [True]

    return Act(f"begin {tuple(entry)}", act)


def start_attempt(world: World, me: str, entry: Entry) -> None:
    """Note an attempt that begins; refuse a second one."""
    begun, running, live = (world.notes[name] for name in ("begun", "running", "live"))
    attempts: Any = begun
    others: Any = running
    if (entry, me) in attempts:
        raise Violation("an attempt begins twice")
    for other, owner in others:
        is_valid = lease_of(*other) not in world.database.lapsed and owner in live  # type: ignore[operator]
        if other.job == entry.job and is_valid:
            raise Violation("two attempts run at once within their leases")
    if any(entry == other for other, _ in attempts):
        raise Violation("an attempt begins twice, under another process' token")
    note(world, begun=attempts | {(entry, me)}, running=others | {(entry, me)})


def end(me: str, entry: Entry) -> Act:
    """End an attempt."""

    def act(world: World, process: str) -> list[Any]:
        note(world, running=world.notes["running"] - {(entry, me)})  # type: ignore[operator]
        return [None]

    return Act(f"end {tuple(entry)}", act)


class Start(NamedTuple):
    """Start a process under a new name, and register it; its supervisor notes that its predecessor is dead."""

    program: str
    keeps_name: bool = False

    def step(self, world: World, process: str) -> list[Any]:
        """Register."""
        live: Any = world.notes["live"]
        number = max((int(each.split()[1]) for each in live if each.startswith(self.program)), default=0)
        me = f"{self.program} {number or 1}" if self.keeps_name else f"{self.program} {number + 1}"
        gone = frozenset(each for each in live if each.startswith(self.program)) - {me}
        registered, dead = world.notes["registered"], world.notes["dead"]
        note(
            world,
            live=live - gone | {me},
            registered=registered - gone | {me},  # type: ignore[operator]
            dead=dead | gone,  # type: ignore[operator]
        )
        return [me]


class Next(NamedTuple):
    """Wait for something to do; a look at one's own leases is for those that are in no list."""

    me: str
    known: frozenset[Entry]
    registers: bool = True
    looks: bool = True

    def step(self, world: World, process: str) -> list[Any]:
        """Choose."""
        rows, lapsed = world.database.committed, world.database.lapsed
        own = listed(world, self.me)
        leased = (
            Entry(job, row.token)
            for (table, job), row in rows.items()
            if table == INFLIGHT and row.worker == self.me
        )
        unlisted = [
            each
            for each in leased
            if each not in own and each not in self.known and lease_of(*each) not in lapsed
        ]
        registered: Any = world.notes["registered"]
        found = {
            "own": bool(own),
            "look": bool(unlisted) and self.looks,
            "shared": bool(world.queue),
            "register": self.me not in registered and self.registers,
        }
        return [what for what, is_found in found.items() if is_found]


class PopOwn(NamedTuple):
    """Take the first of one's own list."""

    me: str

    def step(self, world: World, process: str) -> list[Any]:
        """Take it; Redis may have lost it since."""
        if not (entries := listed(world, self.me)):
            return [None]
        first, *rest = entries
        lists: Any = world.notes["lists"]
        others = tuple(each for each in lists if each[0] != self.me)
        note(world, lists=(*others, *((self.me, entry) for entry in rest)))
        world.held = {**world.held, process: tuple(first)}  # type: ignore[dict-item]
        return [first]


def register(me: str) -> Act:
    """Register again, after Redis lost its data."""

    def act(world: World, process: str) -> list[Any]:
        note(world, registered=world.notes["registered"] | {me})  # type: ignore[operator]
        return [None]

    return Act(f"register {me}", act)

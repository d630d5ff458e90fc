"""Scenarios, the invariants that hold in each of their states, and the mutants that break them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

from proof.atoms import Pop
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.delivery.programs import application
from proof.delivery.statements import FINISHED, INFLIGHT, LAST_DELIVERY, PUSHED_UP_TO, REQUESTS, STAGED, Job
from proof.limits.programs import gives_up, leader, lowers, operator, worker
from proof.limits.statements import CANCELLED, QUEUES, Rules, Statements, runs
from proof.module import Module, Mutant
from proof.postgres import READ_COMMITTED, REPEATABLE_READ, Database, Rows, of_table


def _running(world: World) -> list[tuple[int, int]]:
    """Return jobs that run under valid leases, cancelled ones included."""
    started = {(job, delivery) for job, delivery, _ in world.started}
    return [each for each in world.held.values() if each in started]


def within_limit(world: World) -> None:
    """Require that no more jobs run than the limit when the leader last applied rules, in order one."""
    running, rules = _running(world), world.notes["rules"]
    limit, up_to, started = cast("Rules", rules)
    earlier = {(job, delivery) for job, delivery in running if delivery <= up_to}
    if started is not None and not earlier <= started:
        raise Violation("a job starts under rules that no longer apply")
    if len(running) > max(limit, len(earlier)):
        raise Violation("more jobs run than the limit")


def delivered_within_limit(world: World) -> None:
    """Require delivered, claimed, and cancelled but running jobs within the limit."""
    rows = world.database.committed
    if len(runs(rows)) + len(of_table(rows, CANCELLED)) > rows[QUEUES, 1]:
        raise Violation("more jobs are delivered than the limit")


def _all_done(world: World) -> bool:
    rows = world.database.committed
    return all((FINISHED, job) in rows for table, job in rows if table == REQUESTS)


def _leases_expire(world: World) -> Iterator[tuple[str, bool, World]]:
    """Expire each lease, of a cancelled claim too; while its worker is busy, this is a fault."""
    rows = world.database.committed
    claims = {(INFLIGHT, at): row.worker for at, row in of_table(rows, INFLIGHT).items() if row.is_claimed}
    claims |= {(CANCELLED, at): row[1] for at, row in of_table(rows, CANCELLED).items()}
    for (table, job), name in claims.items():
        if table == INFLIGHT and job in world.database.lapsed:
            continue
        is_busy = world.held.get(name, (0, 0))[0] == job
        if is_busy and not world.faults.get("expiry"):
            continue
        after = world.copy()
        if is_busy:
            after.spend("expiry")
            # Past its lease, it counts no longer.
            after.held = {other: held for other, held in world.held.items() if other != name}
        if table == INFLIGHT:
            after.database.lapsed |= {job}
        else:
            after.database.committed = {key: row for key, row in rows.items() if key != (table, job)}
        yield f"the lease of job {job} expires", is_busy, after


def _is_pop(atom: Atom) -> bool:
    return isinstance(atom, Pop)


def _start(rows: Rows, faults: Mapping[str, int], limit: int) -> World:
    """Begin with these jobs, delivered ones as before a change of rules or leader."""
    numbers = {LAST_DELIVERY: len(of_table(rows, INFLIGHT)), PUSHED_UP_TO: 0}
    queue = tuple((at, row.delivery) for at, row in of_table(rows, INFLIGHT).items())
    notes = {"rules": Rules(max(limit, len(queue)))}
    return World(Database({**rows, (QUEUES, 1): limit}, numbers), queue, dict(faults), notes=notes)


def admitting(
    broken: str,
    *,
    jobs: int = 2,
    limit: int = 1,
    lowered: int = 0,
    workers: int = 2,
    leaders: int = 1,
    outcome: str = "",
    place: str = STAGED,
    apart: bool = False,
    is_ordered: bool = False,
    skips_dead: bool = False,
    skips_locked: bool = False,
    cancels: bool = False,
    locks: bool = False,
    heartbeats: bool = False,
    is_slow: bool = False,
    killable: str = "",
    **faults: int,
) -> Scenario:
    """Run jobs of one queue under a limit, or in order.

    Args:
        lowered: The limit changes to this.
        outcome: End of each first attempt.
        place: Table of the jobs, or of the requests that stage them.
        apart: An application for each request.
        skips_locked: The leader has met a lock; the operator cancels revived jobs.
        cancels: An operator cancels the first job, and revives it.
        locks: An operator cancels the second job, but rolls back.
        killable: Part of the names of processes that may be killed.
    """
    statements = Statements(broken, skips_dead=skips_dead)
    isolation = READ_COMMITTED if skips_locked else REPEATABLE_READ
    every = range(1, jobs + 1)
    rows: dict[tuple[str, int], Any] = {
        (REQUESTS, job): "new" if place == REQUESTS else "staged" for job in every
    }
    if place != REQUESTS:
        rows |= {(place, job): Job(job) if place == INFLIGHT else "staged" for job in every}
    programs: dict[str, Program] = {}
    if place == REQUESTS:
        each = [(job,) for job in every] if apart else [tuple(every)]
        programs |= {f"application {of[0]}": application(statements.delivery, *of) for of in each}
    programs |= {
        f"leader {number}": leader(statements, is_ordered=is_ordered, isolation=isolation)
        for number in range(1, leaders + 1)
    }
    names = [f"worker {number}" for number in range(1, workers + 1)]
    programs |= {
        name: worker(name, statements, outcome, heartbeats=heartbeats, is_slow=is_slow) for name in names
    }
    if lowered:
        programs["operator"] = lowers(lowered)
    if cancels or outcome == "die":
        programs["operator"] = operator(statements, cancels=cancels, gives_up=skips_locked)
    if locks:
        programs["operator"] = gives_up(statements, 2)
    invariants = [within_limit]
    if not lowered and place != INFLIGHT:
        invariants.append(delivered_within_limit)
    return Scenario(
        programs,
        partial(_start, rows, faults, limit),
        tuple(invariants),
        _all_done,
        _leases_expire,
        _is_pop,
        lambda name: bool(killable) and killable in name,
    )


_ordered = partial(admitting, is_ordered=True)
_after_a_change = partial(admitting, place=INFLIGHT)
_SCENARIOS = {
    "a limit of one": partial(admitting, place=REQUESTS, apart=True),
    "attempts fail": partial(admitting, outcome="retry"),
    "attempts fail, two places": partial(admitting, jobs=3, limit=2, outcome="retry"),
    "claims are released": partial(admitting, outcome="release"),
    "leases expire": partial(admitting, jobs=3, limit=2, expiry=1),
    "leases expire, heartbeats": partial(admitting, heartbeats=True, expiry=2),
    "workers are killed": partial(admitting, outcome="retry", killable="worker", kill=2),
    "leaders are killed": partial(admitting, outcome="retry", leaders=2, killable="leader", kill=1),
    "Redis loses everything": partial(admitting, outcome="retry", flush=2),
    "a limit is lowered": partial(_after_a_change, limit=2, lowered=1),
    "a limit has been lowered, and leaders are killed": partial(
        _after_a_change, leaders=2, killable="leader", kill=1
    ),
    "a limit has been lowered while a job is locked": partial(_after_a_change, locks=True),
    "a limit has been lowered while workers claim": partial(_after_a_change, is_slow=True),
    "a limit has been lowered while workers claim and are killed": partial(
        _after_a_change, is_slow=True, killable="worker", kill=1
    ),
    "a running job is cancelled and revived": partial(admitting, cancels=True, expiry=1),
    "one of two running jobs is cancelled and revived": partial(admitting, jobs=3, limit=2, cancels=True),
    "in order": partial(_ordered, jobs=3, place=REQUESTS),
    "in order, two applications": partial(_ordered, place=REQUESTS, apart=True),
    "in order, attempts fail": partial(_ordered, outcome="retry", expiry=1, flush=1),
    "in order, anything is killed": partial(_ordered, outcome="retry", leaders=2, killable="e", kill=1),
    "in order, a job dies": partial(_ordered, jobs=3, outcome="die"),
    "in order, but behind no dead job": partial(_ordered, jobs=3, outcome="die", skips_dead=True),
    "in order, rows are locked": partial(_ordered, jobs=3, outcome="die", skips_dead=True, skips_locked=True),
    "a queue is ordered while jobs are delivered": partial(_ordered, place=INFLIGHT, jobs=3),
}


_RUN, _DELIVERED, _RULES = "more jobs run", "more jobs are delivered", "rules that no longer apply"
_ORDER, _LEASE, _GOAL = "before an earlier one", "a valid lease is called back", "out of reach"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("admit without counting", "a limit of one", _DELIVERED),
        ("redeliver retries without a place", "attempts fail", _DELIVERED),
        ("redeliver retries without counting", "attempts fail", _DELIVERED),
        ("look for claimed jobs alone", "attempts fail", _DELIVERED),
        ("count before the lock", "leaders are killed", _DELIVERED),
        ("take over without counting", "leaders are killed", _DELIVERED),
        ("count delivered jobs alone", "leaders are killed", _DELIVERED),
        ("extend the lease of a waiting job", "leases expire, heartbeats", _DELIVERED),
        ("claim a waiting job", "a limit has been lowered, and leaders are killed", _RULES),
        ("cancel keeps no place", "a running job is cancelled and revived", _RUN),
        ("count no cancelled claims", "a running job is cancelled and revived", _DELIVERED),
        ("count a revived job once", "one of two running jobs is cancelled and revived", _DELIVERED),
        ("count claimed jobs alone", "a limit has been lowered while workers claim", _RUN),
        ("count in two snapshots", "a limit has been lowered while workers claim", _RUN),
        ("take over without calling back", "a limit has been lowered, and leaders are killed", _RULES),
        ("lower a limit without calling back", "a limit is lowered", _RULES),
        ("forget locked jobs", "a limit has been lowered while a job is locked", _RULES),
        ("push locked jobs again", "a limit has been lowered while workers claim and are killed", _RUN),
        ("call back a valid lease", "attempts fail", _LEASE),
        ("call back claimed jobs", "leaders are killed", _LEASE),
        ("a retry holds nothing", "in order, attempts fail", _ORDER),
        ("look at a retry once", "in order, rows are locked", _ORDER),
        ("a dead job holds nothing", "in order, a job dies", _ORDER),
        ("by priority within a key", "in order", _ORDER),
        ("remember the first job of a key", "in order, two applications", _ORDER),
        ("retries in the order of their times", "a queue is ordered while jobs are delivered", _ORDER),
        ("retries before staged jobs", "in order, but behind no dead job", _ORDER),
        ("look for jobs in flight", "attempts fail", _GOAL),
        ("never look for ended jobs", "a limit of one", _GOAL),
        ("never call back leases", "workers are killed", _GOAL),
    )
)
LIMITS = Module("limits", _SCENARIOS, _MUTANTS)

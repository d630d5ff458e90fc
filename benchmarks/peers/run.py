"""The rounds: all peers take turns, so that what else the machine does meets them alike."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import figures
from benchmarks.peers import delay, disturbances, environments, peers, rate
from benchmarks.peers.bench import bench
from benchmarks.peers.results import Delays, Rates, Results, save

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer, Program
    from drain.embedded import Services

UPDATE = "update"
WORKS = ("noop", "cpu", UPDATE)
# What is measured besides at one kind of work.
_ALSO = {UPDATE: (peers.OURS_ON_PSYCOPG,)}
WAIT = "wait"
PER_SECOND = (500, 2000)
# What a job adds to what it costs to run one that does nothing, for two processes: how many to begin with.
_ADDED_SECONDS = {"noop": 0.0, "cpu": 0.0005, UPDATE: 0.0002, WAIT: 1 / 1600}
# The fork of a job has a connection to make.
_FEWEST_JOBS = 60
_SURPRISE = 2
_STORED_JOBS = 20_000


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        rounds: Of rates; half as many of delays.
        seconds: How long one run of a full queue takes.
        delay_seconds: How long single jobs are committed.
        scheduled: Jobs that wait for tomorrow beside those that are worked.
        hold_seconds: How long a snapshot is held; 0 leaves out all other sessions.
    """

    rounds: int
    seconds: float
    delay_seconds: float
    scheduled: int
    hold_seconds: float


def run(services: Services, plan: Plan) -> Results:
    """Measure everything."""
    environments.make({peer.environment for peer in peers.ALL})
    with bench(services) as place:
        results = Results(versions=peers.versions())
        results.rates = rates(place, peers.ALL, WORKS, plan.rounds, plan.seconds)
        results.at_once = _at_once(place, plan)
        results.delays = _delays(place, plan)
        results.stored = _stored(place)
        # The rest takes long, and what has been measured is worth keeping if it is cut short.
        save(results)
        results.disturbed = _disturbed(place, plan, results.rates)
    return results


def rates(
    place: Bench, measured: Sequence[Peer], works: Sequence[str], rounds: int, seconds: float
) -> list[Rates]:
    """Rates of all of them at each kind of work, round by round."""
    ways = {name: [*measured, *(_ALSO.get(name, ()) if peers.OURS in measured else ())] for name in works}
    found = {(peer.name, name): Rates(peer.name, name) for name in works for peer in ways[name]}
    for number in range(rounds):
        for name in works:
            figures.say(f"{name}, round {number + 1} of {rounds}")
            for peer in ways[name]:
                job = peer.update if name == UPDATE else name
                _one_run(place, peer, name, job, seconds, found[peer.name, name], peer.programs)
    return list(found.values())


def _at_once(place: Bench, plan: Plan) -> list[Rates]:
    found = []
    for number in range((plan.rounds + 1) // 2):
        figures.say(f"{peers.AT_ONCE} at once, round {number + 1}")
        for position, peer in enumerate(
            each for each in (*peers.ALL, peers.OURS_IN_PROCESSES) if each.at_once
        ):
            if not number:
                found.append(Rates(peer.name, WAIT))
            assert peer.at_once
            _one_run(place, peer, WAIT, peer.wait, plan.seconds, found[position], peer.at_once)
    return found


def _one_run(
    place: Bench,
    peer: Peer,
    work: str,
    job: str,
    seconds: float,
    found: Rates,
    programs: Callable[[str], list[Program]],
) -> None:
    expected = found.rates[-1] if found.runs else 1 / (1 / peer.guess + _ADDED_SECONDS[work])
    while True:
        place.reset(peer)
        jobs = max(_FEWEST_JOBS, int(expected * seconds))
        last = rate.measure(place, peer, job, jobs, seconds, programs(place.services.redis_url))
        if last.rate < _SURPRISE * expected:
            break
        # Over before it was well under way: once more, with as many as it turned out to take.
        expected = last.rate
    found.runs.append(last)
    figures.say(f"  {peer.name}: {last.rate:,.0f} a second, {last.cpu_seconds:.1f} s a 100,000")


def _delays(place: Bench, plan: Plan) -> list[Delays]:
    found = {(peer.name, each): Delays(peer.name, each) for each in PER_SECOND for peer in peers.ALL}
    for _ in range((plan.rounds + 1) // 2):
        for each in PER_SECOND:
            figures.say(f"{each} commits a second")
            for peer in peers.ALL:
                one = delay.measure(place, peer, each, plan.delay_seconds)
                found[peer.name, each].runs.append(one)
                figures.say(
                    f"  {peer.name}: p50 {one.p50:.1f} ms, p99 {one.p99:.1f} ms; "
                    f"{one.committed_per_second:,.0f} committed and {one.started_per_second:,.0f} started a second"
                )
    return list(found.values())


def _stored(place: Bench) -> dict[str, rate.Stored]:
    figures.say("bytes of a queued job")
    found: dict[str, rate.Stored] = {}
    for peer in {each.app: each for each in peers.ALL}.values():
        drain = [each for each in peer.programs(place.services.redis_url) if not each.is_worker]
        found[peer.app] = rate.stored(place, peer, _STORED_JOBS, drain)
        figures.say(f"  {peer.app}: {found[peer.app]}")
    return {peer.name: found[peer.app] for peer in peers.ALL}


def _disturbed(place: Bench, plan: Plan, measured: Sequence[Rates]) -> list[disturbances.Disturbed]:
    if not plan.hold_seconds:
        return []
    figures.say("beside other sessions")
    medians = {each.peer: statistics.median(each.rates) for each in measured if each.work == "noop"}
    return [
        one
        for peer in peers.IN_POSTGRES
        for one in disturbances.measure(
            place,
            peer,
            int(medians[peer.name] * plan.seconds),
            plan.seconds,
            scheduled=plan.scheduled,
            hold_seconds=plan.hold_seconds,
        )
    ]

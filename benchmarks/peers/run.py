"""The rounds: all peers take turns, so that other load on the machine affects all alike."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from benchmarks import figures
from benchmarks.peers import delay, disturbances, environments, peers, rate
from benchmarks.peers.bench import bench
from benchmarks.peers.results import Delays, Rates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer, Program
    from benchmarks.peers.results import Results
    from drain.embedded import Services

_Found = TypeVar("_Found")
NOOP, CPU, UPDATE, WAIT = "noop", "cpu", "update", "wait"
# Peers by kind of work.
WORKS: dict[str, tuple[Peer, ...]] = {
    NOOP: peers.ALL,
    # Its millisecond is a number of iterations of a Python loop.
    CPU: (*peers.IN_PYTHON, peers.BARE_LOOPS),
    UPDATE: (*peers.ALL, *peers.ALSO_UPDATING),
}
# Kinds of work that are tried with several numbers of processes, and the systems to try: for jobs that do nothing, only
# the closest ones.
TRIED = {
    NOOP: (peers.OURS, peers.PGQUEUER, peers.DRAMATIQ, peers.GRAPHILE_BATCHED, peers.PGBOSS_BATCHED),
    UPDATE: tuple(peer for peer in WORKS[UPDATE] if peer is not peers.PGBOSS),
}
PROCESSES = (1, 2, 3, 4)
# Systems without a goal: they are much slower, and the time is better spent on the others.
_FAR_OFF = (
    peers.RQ_WORKER,
    peers.RQ_POOL,
    peers.PROCRASTINATE,
    peers.CELERY,
    peers.GRAPHILE,
    peers.PGBOSS,
)
# pg-boss with its defaults starts at most two jobs a second.
DELAYED = tuple(peer for peer in peers.ALL if peer is not peers.PGBOSS)
_ROUNDS_OF_FAR_OFF = 2
PER_SECOND = (500, 2000)
# Seconds that a job takes in addition to one that does nothing, on two processes, for the first number of jobs.
_ADDED_SECONDS = {NOOP: 0.0, CPU: 0.0005, UPDATE: 0.0002, WAIT: 1 / 1600}
# A forked job opens its own connection.
_FEWEST_JOBS = 60
_SURPRISE = 2
_STORED_JOBS = 20_000
_TRIED_SECONDS = 2.5
_DELAY_SECONDS = 8.0


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        rounds: Rounds of rates and of delays.
        seconds: Duration of one run of a full queue.
        scheduled: Jobs scheduled for tomorrow, in addition to those that run.
        hold_seconds: How long a snapshot is held.
    """

    rounds: int
    seconds: float
    scheduled: int
    hold_seconds: float

    @property
    def delay_seconds(self) -> float:
        """Duration of single commits."""
        return min(_DELAY_SECONDS, 2 * self.seconds)


def processes(services: Services, results: Results, plan: Plan) -> None:
    """Find the fastest number of processes for each system, by short runs."""
    environments.make({peer.environment for peer in peers.ALL})
    with bench(services) as place:
        for name, tried in TRIED.items():
            results.processes[name] = {
                peer.name: _best_processes(place, peer, name, min(plan.seconds, _TRIED_SECONDS))
                for peer in tried
            }


def rates(services: Services, results: Results, plan: Plan, *, work: str) -> None:
    """Measure the rates of all peers at one kind of work, round by round."""
    environments.make({peer.environment for peer in peers.ALL})
    found = [Rates(peer.name, work) for peer in WORKS[work]]
    best = results.processes.get(work, {})
    with bench(services) as place:
        for number in range(plan.rounds):
            figures.say(f"{work}, round {number + 1} of {plan.rounds}")
            for peer, one in _taking_part(zip(WORKS[work], found, strict=True), number):
                programs = peer.programs(services.redis_url, best.get(peer.name, peers.PROCESSES))
                _one_run(place, peer, one, plan.seconds, programs)
    results.rates = [each for each in results.rates if each.work != work] + found


def at_once(services: Services, results: Results, plan: Plan) -> None:
    """Measure the rates of jobs that wait, sixteen at a time."""
    environments.make({peer.environment for peer in peers.ALL})
    waiting = (*peers.ALL, peers.OURS_IN_PROCESSES, peers.OURS_IN_THREADS)
    found = [(peer, Rates(peer.name, WAIT)) for peer in waiting if peer.at_once]
    with bench(services) as place:
        for number in range(plan.rounds):
            figures.say(f"{peers.AT_ONCE} at once, round {number + 1} of {plan.rounds}")
            for peer, one in _taking_part(found, number):
                assert peer.at_once
                _one_run(place, peer, one, plan.seconds, peer.at_once(services.redis_url))
    results.at_once = [one for _, one in found]


def delays(services: Services, results: Results, plan: Plan, *, per_second: int) -> None:
    """Measure the delays from commit to start at one rate of commits."""
    environments.make({peer.environment for peer in peers.ALL})
    found = [Delays(peer.name, per_second) for peer in DELAYED]
    with bench(services) as place:
        for number in range(plan.rounds):
            figures.say(f"{per_second} commits a second, round {number + 1} of {plan.rounds}")
            for peer, delays_ in _taking_part(zip(DELAYED, found, strict=True), number):
                one = delay.measure(place, peer, per_second, plan.delay_seconds)
                delays_.runs.append(one)
                figures.say(f"  {peer.name}: {one.in_words()}")
    results.delays = [each for each in results.delays if each.per_second != per_second] + found
    results.delays.sort(key=lambda each: each.per_second)


def stored(services: Services, results: Results, _plan: Plan) -> None:
    """Measure the bytes per queued job."""
    environments.make({peer.environment for peer in peers.ALL})
    figures.say("bytes of a queued job")
    found: dict[str, rate.Stored] = {}
    with bench(services) as place:
        for peer in {each.app: each for each in peers.ALL}.values():
            drain = peers.DRAIN_ALL if peer is peers.OURS else []
            found[peer.app] = rate.stored(place, peer, _STORED_JOBS, drain)
            figures.say(f"  {peer.app}: {found[peer.app]}")
    results.stored = {peer.name: found[peer.app] for peer in peers.ALL}


def disturbed(services: Services, results: Results, plan: Plan, *, peer: Peer) -> None:
    """Measure the rates of one peer alongside other sessions."""
    environments.make({peer.environment})
    figures.say(f"{peer.name} alongside other sessions")
    measured = results.rates_of(NOOP).get(peer.name)
    expected = statistics.median(measured.rates) if measured else peer.guess
    with bench(services) as place:
        found = disturbances.measure(
            place,
            peer,
            max(_FEWEST_JOBS, int(expected * plan.seconds)),
            plan.seconds,
            scheduled=plan.scheduled,
            hold_seconds=plan.hold_seconds,
        )
    results.disturbed = [each for each in results.disturbed if each.peer != peer.name] + found


def _taking_part(pairs: Iterable[tuple[Peer, _Found]], number: int) -> Iterator[tuple[Peer, _Found]]:
    """Select the peers of a round, numbered from 0."""
    return ((peer, one) for peer, one in pairs if number < _ROUNDS_OF_FAR_OFF or peer not in _FAR_OFF)


def _one_run(place: Bench, peer: Peer, found: Rates, seconds: float, programs: Sequence[Program]) -> None:
    """Run one full queue of the work of `found`, and add the figures to it."""
    work = found.work
    job = {UPDATE: peer.update, WAIT: peer.wait}.get(work, work)
    expected = found.rates[-1] if found.runs else 1 / (1 / peer.guess + _ADDED_SECONDS[work])
    while True:
        place.reset(peer)
        jobs = max(_FEWEST_JOBS, int(expected * seconds))
        last = rate.measure(place, peer, job, jobs, seconds, programs)
        if last.rate < _SURPRISE * expected:
            break
        # Too short: repeat with a number of jobs based on the measured rate.
        expected = last.rate
    found.runs.append(last)
    figures.say(f"  {peer.name}: {last.rate:,.0f} a second, {last.cpu_seconds:.1f} s a 100,000")


def _best_processes(place: Bench, peer: Peer, work: str, seconds: float) -> int:
    found = Rates(peer.name, work)
    for number in PROCESSES:
        figures.say(f"{work}, {number} processes")
        _one_run(place, peer, found, seconds, peer.programs(place.services.redis_url, number))
    return PROCESSES[found.rates.index(max(found.rates))]

"""Prediction: many simulations of what is known, and what nine in ten of them agree on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from drain.contrib.forecast.inputs import Known
from drain.contrib.forecast.simulation import Outcome, Simulation

# Number of simulations.
RUNS = 20
# Number of measured jobs of one simulation; the end of more of them is worked out from the second half of these.
MOST_JOBS = 4_000
# Longest time of a simulation without the backlog, in jobs that come.
_MOST_ARRIVALS = 20_000
# Part of the jobs that wait to the end from which their queue counts as one that waits until then.
_STARVED = 0.05


@dataclass(frozen=True)
class Range:
    """Median of the simulations, and the range of nine in ten of them, in seconds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Wait:
    """Seconds that jobs wait that come meanwhile.

    Attributes:
        median: Half of them wait no longer.
        most: 95 in 100 of them wait no longer.
        to_the_end: Many of them wait until the backlog has ended.
    """

    median: float
    most: float
    to_the_end: bool = False


@dataclass(frozen=True)
class Effect:
    """Waiting in one queue, with and without the jobs that are asked about; None where none came."""

    queue: str
    arrivals: float
    with_it: Wait | None
    without: Wait | None


@dataclass(frozen=True)
class Prediction:
    """Result of a forecast.

    Attributes:
        ends: Seconds until the jobs that are asked about have ended.
        effects: Waiting of the jobs that come meanwhile, by queue, that of the queue first.
        load: Part of what its workers and its rules let the queue run that its arrivals alone need; from 1 on its
            waiting jobs grow ever more.
    """

    ends: Range
    effects: Sequence[Effect]
    load: float


def predict(known: Known, *, runs: int = RUNS, most_jobs: int = MOST_JOBS, seed: int = 1) -> Prediction:
    """Simulate the known facts; the same facts have the same prediction. A queue without a backlog ends at once.

    One whose workers all run jobs without a known end has no end either.
    """
    if known.is_stuck:
        never = float("inf")
        return Prediction(Range(never, never, never), [], load(known))
    outcomes = [
        Simulation(known.scene(source), source).run(most=most_jobs)
        for source in (random.Random(seed * 1_000 + number) for number in range(runs))  # noqa: S311  (no secret)
    ]
    ends = sorted(_end(outcome) for outcome in outcomes)
    median = quantile(ends, 0.5)
    comes = sum(queue.arrivals for queue in known.queues.values())
    horizon = min(median, _MOST_ARRIVALS / comes / runs) if comes else 0.0
    without = [
        Simulation(known.scene(source, without=True), source).run(most=most_jobs, horizon=max(horizon, 1e-9))
        for source in (random.Random(seed * 1_000 + number) for number in range(runs))  # noqa: S311
    ]
    names = sorted(known.queues, key=lambda name: (name != known.queue, name))
    effects = [
        Effect(
            name,
            known.queues[name].arrivals,
            _wait(outcomes, name, is_cut=any(each.left for each in outcomes)),
            _wait(without, name, is_cut=False),
        )
        for name in names
        if known.queues[name].arrivals
    ]
    return Prediction(Range(median, quantile(ends, 0.05), quantile(ends, 0.95)), effects, load(known))


def load(known: Known) -> float:
    """Work out which part of what a queue can run its arrivals need."""
    facts = known.queues[known.queue]
    rules, samples = facts.rules, known.samples(known.queue)
    mine = [names for names in known.workers if known.queue in names]
    at_a_time = min(len(mine), rules.running or len(mine)) if rules else len(mine)
    parts = [0.0]
    if samples and at_a_time:
        parts.append(facts.arrivals * fmean(samples) / at_a_time)
    bucket = rules.bucket if rules else None
    if bucket is not None:
        parts.append(facts.arrivals / bucket.per_second)
    return max(parts)


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the value below which this part of the ordered values lies, between two of them if need be."""
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    # Without arithmetic where the neighbours are equal: infinity less infinity is no number.
    if place == below or ordered[below] == ordered[above]:
        return ordered[below]
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _end(outcome: Outcome) -> float:
    """Return when the measured jobs end; those that were not simulated end as fast as the second half of the others."""
    if outcome.ended_at is not None:
        return outcome.ended_at
    half_at, half = outcome.halves
    per_second = (outcome.ended - half) / max(outcome.seconds - half_at, 1e-9)
    return outcome.seconds + outcome.left / per_second if outcome.ended else float("inf")


def _wait(outcomes: Sequence[Outcome], queue: str, *, is_cut: bool) -> Wait | None:
    waits = sorted(wait for outcome in outcomes for wait in outcome.waits[queue])
    if not waits:
        return None
    unbegun = sum(outcome.unbegun[queue] for outcome in outcomes)
    to_the_end = is_cut and unbegun > _STARVED * len(waits)
    return Wait(quantile(waits, 0.5), quantile(waits, 0.95), to_the_end)

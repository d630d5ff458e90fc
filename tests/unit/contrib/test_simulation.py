"""The simulation of a forecast against closed forms; it knows no clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import ceil
from statistics import fmean
from typing import Any

import pytest

from drain.contrib.forecast import report as forecast_report
from drain.contrib.forecast.inputs import Added, Known, KnownQueue
from drain.contrib.forecast.model import Backlog, Draw, Queue, Scene, Worker
from drain.contrib.forecast.prediction import Prediction, Range, load, predict, quantile
from drain.contrib.forecast.run_times import run_times
from drain.contrib.forecast.simulation import Outcome, Simulation
from drain.contrib.forecast.throughput import Claimed, Finished, Later, Waiting
from drain.tables.rules import RulesRow

ALL = 10**9


def constant(seconds: float) -> Draw:
    return lambda _source: seconds


def exponential(per_second: float) -> Draw:
    return lambda source: source.expovariate(per_second)


def backlog(jobs: int, seconds: float = 1.0, **options: Any) -> Backlog:
    return Backlog(jobs, constant(seconds), measured=True, **options)


def simulate(
    queues: Sequence[Queue], workers: Sequence[Worker], *, most: int = ALL, horizon: float = float("inf")
) -> Outcome:
    return Simulation(Scene(queues, workers), random.Random(1)).run(most=most, horizon=horizon)


def ended(*queues: Queue, workers: Sequence[Worker]) -> float:
    found = simulate(queues, workers)
    assert found.ended_at is not None
    assert (found.left, found.ended) == (0, sum(b.jobs for q in queues for b in q.backlog if b.measured))
    return found.ended_at


@pytest.mark.parametrize("jobs", [1, 4, 5, 103])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("running", [None, 1, 3, 9])
def test_constant_run_times_without_arrivals_end_when_they_must(
    jobs: int, workers: int, running: int | None
) -> None:
    queue = Queue("a", [backlog(jobs, 2.0)], running=running)
    at_a_time = min(workers, running or workers)
    assert ended(queue, workers=[Worker(["a"])] * workers) == 2.0 * ceil(jobs / at_a_time)


@pytest.mark.parametrize(("rate", "burst"), [(10.0, 1), (10.0, 5), (0.5, 2)])
def test_a_rate_lets_the_last_job_begin_when_its_token_comes(rate: float, burst: int) -> None:
    queue = Queue("a", [backlog(40, 0.001)], rate=rate, burst=burst)
    assert ended(queue, workers=[Worker(["a"])] * 3) == pytest.approx((40 - burst) / rate + 0.001)


def test_a_pause_a_retry_and_a_job_that_runs_are_waited_for() -> None:
    paused = Queue("a", [backlog(3, 1.0)], opens_at=50.0)
    assert ended(paused, workers=[Worker(["a"])]) == 53.0
    later = Queue("a", [backlog(1, 1.0, at=70.0)])
    assert ended(later, workers=[Worker(["a"])]) == 71.0
    running = Worker(["a"], busy=7.0, runs="a", measured=True)
    found = simulate([Queue("a", [backlog(2, 1.0)])], [running])
    assert (found.ended_at, found.ended) == (9.0, 3)
    found = simulate([Queue("a", [backlog(2, 1.0)], running=1)], [running, Worker(["a"])])
    assert found.ended_at == 9.0


def test_jobs_that_come_due_one_after_another_end_a_run_time_after_the_last() -> None:
    assert ended(Queue("a", [backlog(10, 1.0, per_second=0.5)]), workers=[Worker(["a"])]) == 18.0 + 1.0


def test_a_worker_takes_its_queues_in_their_order() -> None:
    queues = [Queue("a", [backlog(10)]), Queue("b", [Backlog(6, constant(1.0))])]
    assert ended(*queues, workers=[Worker(["b", "a"])]) == 16.0
    assert ended(*queues, workers=[Worker(["a", "b"])]) == 10.0
    assert ended(*queues, workers=[Worker(["b", "a"]), Worker(["a"])]) == 8.0


def test_patient_jobs_come_after_urgent_ones_of_their_queue() -> None:
    queue = Queue("a", [backlog(5, patient=True), Backlog(5, constant(1.0))])
    assert ended(queue, workers=[Worker(["a"])]) == 10.0
    queue = Queue("a", [Backlog(5, constant(1.0), patient=True), backlog(5)])
    assert ended(queue, workers=[Worker(["a"])]) == 5.0


def test_a_queue_that_is_full_lets_workers_go_on_to_the_next() -> None:
    queues = [Queue("a", [Backlog(100, constant(10.0))], running=1), Queue("b", [backlog(10)])]
    assert ended(*queues, workers=[Worker(["a", "b"])] * 2) == 10.0


@pytest.mark.parametrize(
    ("draw", "mean_wait"),
    [
        # M/M/1: rho / (mu - lambda); M/D/1: half of that.
        (exponential(10.0), 0.5 / (10 - 5)),
        (constant(0.1), 0.5 / (10 - 5) / 2),
    ],
)
def test_arrivals_wait_as_queueing_theory_says(draw: Draw, mean_wait: float) -> None:
    queue = Queue("a", arrivals=5.0, draw=draw)
    waits = simulate([queue], [Worker(["a"])], horizon=6_000.0).waits["a"]
    assert len(waits) == pytest.approx(30_000, rel=0.02)
    assert fmean(waits) == pytest.approx(mean_wait, rel=0.1)


def test_what_waits_for_a_queue_that_always_comes_first_does_not_end() -> None:
    first = Queue("b", arrivals=100.0, draw=constant(1.0))
    found = simulate([Queue("a", [backlog(5)]), first], [Worker(["b", "a"])], most=50)
    # One may have begun before the first of the others came.
    assert (found.ended_at, found.left >= 4) == (None, True)


def known(queue: KnownQueue, *others: KnownQueue, workers: int = 2, times: Any = None, **more: Any) -> Known:
    rows = times or [Finished("a", "m.f", "p", 10.0 * at, 10.0 * at + 0.5) for at in range(50)]
    queues = {each.name: each for each in (queue, *others)}
    return Known("a", queues, [list(queues)] * workers, run_times(rows), 1_000.0, **more)


def waiting(jobs: int) -> list[Waiting]:
    return [Waiting("m.f", patient=False, jobs=jobs)]


def test_a_forecast_of_constant_run_times_is_exact() -> None:
    found = predict(known(KnownQueue("a", waiting(99))))
    assert found.ends.median == found.ends.low == found.ends.high == pytest.approx(50 * 0.5)
    assert (found.effects, found.load) == ([], 0.0)


def test_a_backlog_of_millions_is_forecast_from_its_first_thousands() -> None:
    found = predict(known(KnownQueue("a", waiting(3_000_000))), runs=3)
    assert found.ends.median == pytest.approx(1_500_000 * 0.5, rel=0.001)


@pytest.mark.parametrize(
    ("queue", "end"),
    [
        (KnownQueue("a", waiting(10), rules=RulesRow("a", running=1)), 5.0),
        (KnownQueue("a", waiting(10), rules=RulesRow("a", rate="1/s", burst=2)), 8.5),
        (KnownQueue("a", waiting(10), paused_seconds=60.0), 62.5),
        (KnownQueue("a", waiting(10), paused_seconds=float("inf")), 2.5),
        (KnownQueue("a", waiting(10), retrying=[Later("m.f", 30.0)]), 30.5),
        (KnownQueue("a", waiting(10), scheduled=[Later("m.f", 30.0)]), 2.5),
        # One has run for 0.2 s of 0.5; its process has another one, which begins behind it.
        (KnownQueue("a", waiting(0), claimed=[Claimed("m.f", "p", 999.8), Claimed("m.f", "p", 999.8)]), 0.5),
    ],
)
def test_rules_pauses_and_what_runs_count(queue: KnownQueue, end: float) -> None:
    assert predict(known(queue), runs=3).ends.median == pytest.approx(end)


def test_a_few_run_times_that_differ_make_a_wide_range() -> None:
    def spread(rows: int) -> float:
        seconds = [0.01, 2.0] * (rows // 2)
        times = [Finished("a", "m.f", "p", 10.0 * at, 10.0 * at + long) for at, long in enumerate(seconds)]
        ends = predict(known(KnownQueue("a", waiting(1_000)), times=times)).ends
        assert ends.low < 500 * 1.005 < ends.high
        return (ends.high - ends.low) / ends.median

    assert spread(8) > 0.2
    assert spread(800) < 0.15


def effects(found: Prediction) -> dict[str, tuple[float, float, bool]]:
    told = {}
    for each in found.effects:
        assert each.with_it is not None
        assert each.without is not None
        told[each.queue] = (each.with_it.median, each.without.median, each.with_it.to_the_end)
    return told


def test_jobs_that_come_meanwhile_wait_for_the_backlog_if_their_queue_comes_behind() -> None:
    times = [Finished(queue, "m.f", queue, 10.0 * at, 10.0 * at + 0.1) for at in range(50) for queue in "ab"]
    behind = KnownQueue("b", arrivals=2.0)
    found = effects(predict(known(KnownQueue("a", waiting(1_000)), behind, workers=1, times=times), runs=5))
    assert found["b"][0] > 30.0
    assert found["b"][1] < 0.1
    cut = predict(
        known(KnownQueue("a", waiting(100_000)), behind, workers=1, times=times), runs=2, most_jobs=500
    )
    assert effects(cut)["b"][2]


def test_a_backfill_ends_behind_what_waits_and_lets_urgent_jobs_pass() -> None:
    facts = KnownQueue("a", waiting(10), arrivals=0.2)
    found = predict(known(facts, workers=1, added=Added(100, "m.f")), runs=5)
    assert found.ends.median == pytest.approx(55.0 * 1.11, rel=0.1)
    with_it, without, _ = effects(found)["a"]
    assert with_it < 1.0 + without
    slow = predict(known(KnownQueue("a"), workers=1, added=Added(100, "m.f", per_second=1.0)), runs=2)
    assert slow.ends.median == pytest.approx(99.5)


def test_more_than_can_be_run_is_noticed() -> None:
    assert load(known(KnownQueue("a", arrivals=3.0))) == pytest.approx(0.75)
    assert load(known(KnownQueue("a", arrivals=3.0, rules=RulesRow("a", running=1)))) == pytest.approx(1.5)
    assert load(known(KnownQueue("a", arrivals=3.0, rules=RulesRow("a", rate="1/s")))) == pytest.approx(3.0)


def test_the_same_facts_have_the_same_forecast() -> None:
    facts = known(KnownQueue("a", waiting(50), arrivals=1.0))
    assert predict(facts) == predict(facts)


def rows(*spans: tuple[float, float], process: str = "p") -> list[Finished]:
    return [Finished("a", "m.f", process, begin, end) for begin, end in spans]


@pytest.mark.parametrize(
    ("finished", "seconds"),
    [
        # Claimed together, run one after the other.
        (rows((0, 1), (0, 3), (0, 6)), [1, 2, 3]),
        # An idle time between two jobs is no run time.
        (rows((0, 1), (5, 6)), [1, 1]),
        # Recorded by one statement: their time is shared.
        (rows((0, 1), (0, 1.0005), (0, 1.001)), [1.001 / 3] * 3),
        ([*rows((0, 1)), *rows((0, 2), process="q")], [1, 2]),
    ],
)
def test_a_job_runs_from_the_end_of_the_one_before(finished: list[Finished], seconds: list[float]) -> None:
    for order in (finished, finished[::-1]):
        assert sorted(run_times(order).of("a", "m.f")) == pytest.approx(sorted(seconds))
    assert run_times(finished).of("a", "unknown") == run_times(finished).by_queue["a"]


@pytest.mark.parametrize(("part", "value"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0), (0.95, 3.85)])
def test_a_quantile_lies_between_its_neighbours(part: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], part) == pytest.approx(value)


def test_a_quantile_of_ends_that_never_come_is_a_number() -> None:
    never = float("inf")
    assert quantile([never] * 20, 0.5) == never
    assert quantile([1.0, never, never], 0.5) == never
    assert quantile([1.0, 2.0, never], 0.5) == 2.0
    assert quantile([1.0, never], 0.05) == never


@pytest.mark.parametrize(
    ("seconds", "said"), [(float("inf"), "never, as far"), (1e18, "after the year 9999")]
)
def test_an_end_that_no_calendar_has_is_said_and_is_null_for_programs(
    seconds: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = known(KnownQueue("a", waiting(3)))
    found = Prediction(Range(seconds, seconds, seconds), [], 0.0)
    forecast_report.show(facts, found)
    assert said in capsys.readouterr().out
    assert forecast_report.as_json(facts, found)["ends"]["at"] is None

"""Metrics of `drain work`, read from shared memory."""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from pathlib import Path

from prometheus_client.core import Exemplar
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from drain import metrics
from drain.jobs.objectives import RUN_BUCKETS, WAIT_BUCKETS
from drain.service.versions import versions
from drain.workers.handover.journal import Journal, Progress
from drain.workers.measures import memory
from drain.workers.measures.memory import Measures

_STATES = {Progress.CLAIMED: "waiting", Progress.RUNNING: "running", Progress.FINISHED: "finished"}
# By histogram bounds.
_LABELS: dict[tuple[float, ...], tuple[str, ...]] = {
    bounds: tuple(str(floatToGoString(bound)) for bound in (*bounds, float("inf")))  # type: ignore[no-untyped-call]
    for bounds in (RUN_BUCKETS, WAIT_BUCKETS)
}


class JournalCollector(Collector):
    """Metrics of worker processes by slot."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = journals

    def collect(self) -> Iterator[Metric]:
        """Read the journals."""
        alive = GaugeMetricFamily(*metrics.WORK_ALIVE, labels=["process"])
        cut_off = GaugeMetricFamily(*metrics.WORK_CUT_OFF, labels=["process"])
        held = GaugeMetricFamily(*metrics.WORK_HELD, labels=["process", "state"])
        ended = CounterMetricFamily(*metrics.WORK_ENDED, labels=["process", "outcome"])
        for number, journal in enumerate(self._journals, 1):
            process = str(number)
            alive.add_metric([process], journal.is_alive)
            cut_off.add_metric([process], journal.is_cut_off)
            found = [entry.progress for entry in journal.entries()]
            for progress, state in _STATES.items():
                held.add_metric([process, state], found.count(progress))
            for outcome, count in zip(("finished", "failed"), journal.counts, strict=True):
                ended.add_metric([process, outcome], count)
        yield from (alive, cut_off, held, ended)


class MeasuresCollector(Collector):
    """Metrics of all jobs, and of each process by slot."""

    def __init__(self, measures: Sequence[Measures]) -> None:
        self._measures = measures

    def collect(self) -> Iterator[Metric]:
        """Read the measures."""
        yield from self._processes()
        yield from self._jobs()
        build = GaugeMetricFamily(*metrics.WORK_BUILD_INFO, labels=["version", "python"])
        build.add_metric(versions(), 1)
        yield build

    def _processes(self) -> Iterator[Metric]:
        busy = CounterMetricFamily(*metrics.WORK_BUSY, labels=["process"])
        lost = CounterMetricFamily(*metrics.WORK_LOST_LEASES, labels=["process"])
        stale = CounterMetricFamily(*metrics.WORK_STALE, labels=["process"])
        resident = GaugeMetricFamily(*metrics.WORK_MEMORY, labels=["process"])
        for number, measures in enumerate(self._measures, 1):
            process, totals = [str(number)], measures.totals
            busy.add_metric(process, totals.busy_seconds)
            lost.add_metric(process, totals.lost_leases)
            stale.add_metric(process, totals.stale_outcomes)
            size = _resident_bytes(measures.pid)
            if size is not None:
                resident.add_metric(process, size)
        yield from (busy, lost, stale, resident)

    def _jobs(self) -> Iterator[Metric]:
        labels = ["queue", "job_name"]
        run = HistogramMetricFamily(*metrics.WORK_RUN, labels=labels)
        wait = HistogramMetricFamily(*metrics.WORK_WAIT, labels=labels)
        finished = CounterMetricFamily(*metrics.WORK_FINISHED, labels=labels)
        failed = CounterMetricFamily(*metrics.WORK_FAILED, labels=[*labels, "error"])
        expired = CounterMetricFamily(*metrics.WORK_EXPIRED, labels=["queue"])
        of_queue, failures = defaultdict[str, float](float), defaultdict[tuple[str, str, str], float](float)
        for pair, row, exemplars in self._rows(failures):
            counts = row[memory.RUN : memory.RUN_SUM]
            if sum(counts):
                run.add_metric(pair, _buckets(RUN_BUCKETS, counts, exemplars), row[memory.RUN_SUM])
            counts = row[memory.WAIT : memory.WAIT_SUM]
            if sum(counts):
                wait.add_metric(pair, _buckets(WAIT_BUCKETS, counts), row[memory.WAIT_SUM])
            finished.add_metric(pair, row[memory.FINISHED])
            of_queue[pair[0]] += row[memory.EXPIRED]
            failures[*pair, metrics.OTHERS] += row[memory.OTHER_FAILURES]
        for of_error, number in failures.items():
            if number:
                failed.add_metric(of_error, number)
        for queue, number in of_queue.items():
            expired.add_metric([queue], number)
        yield from (run, wait, finished, failed, expired)

    def _rows(
        self, failures: dict[tuple[str, str, str], float]
    ) -> list[tuple[tuple[str, str], list[float], list[memory.Exemplar | None]]]:
        rows: dict[tuple[str, str], list[float]] = {}
        exemplars: dict[tuple[str, str], list[memory.Exemplar | None]] = {}
        for measures in self._measures:
            pairs = measures.pairs()
            for number, pair in enumerate(pairs):
                row, found = measures.row(number), measures.exemplars(number)
                rows[pair] = (
                    [sum(both) for both in zip(rows[pair], row, strict=True)] if pair in rows else row
                )
                exemplars[pair] = [
                    max(filter(None, both), default=None)
                    for both in zip(exemplars.get(pair, found), found, strict=True)
                ]
            for each in measures.failures():
                if each.pair < len(pairs):
                    failures[*pairs[each.pair], each.error] += each.number
        return [(pair, row, exemplars[pair]) for pair, row in rows.items()]


def _buckets(
    bounds: tuple[float, ...], counts: Sequence[float], exemplars: Sequence[memory.Exemplar | None] = ()
) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    cumulated = zip(_LABELS[bounds], accumulate(counts), strict=True)
    for (label, number), found in zip_longest(cumulated, exemplars):
        if found is None:
            buckets.append((label, number))
        else:
            exemplar = Exemplar({"trace_id": found.trace.hex()}, found.seconds, found.at)
            buckets.append((label, number, exemplar))
    return buckets


def _resident_bytes(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return None

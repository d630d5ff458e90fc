"""Counts of a process' ended jobs, in memory that the port reads.

The finisher's thread counts most, the main thread those that it records: a lock guards them.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic, time
from typing import Any, Protocol, TypeAlias

from drain.jobs.objectives import RUN_BUCKETS, WAIT_BUCKETS
from drain.jobs.options import JobOptions
from drain.jobs.registry import Job
from drain.metrics import NOT_REGISTERED, OTHERS
from drain.tables.claims import Claim
from drain.workers.execution.decision import FINISHED, STALE, error_of
from drain.workers.execution.outcome import Outcome
from drain.workers.measures import memory
from drain.workers.measures.memory import RUN_SUM, WAIT, WAIT_SUM, Exemplar, Measures, error_text

AnyJob: TypeAlias = Job[..., Any]

# Pairs with their own labels; the rest is for other jobs of each queue.
OWN_PAIRS = memory.PAIRS - 32
# Of a bucket.
_EXEMPLAR_SECONDS = 1.0
# Trace of a job staged in a sampled span, as jsonb text.
_SAMPLED = re.compile(r'"traceparent": "00-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f][13579bdf]"')


class Measured(Protocol):
    """Ended job, like `Run`."""

    claim: Claim
    job: AnyJob | None
    options: JobOptions
    waits_since: float
    began_at: float | None
    took: float


@dataclass(slots=True)
class Run:
    """Ended job claimed alone; times by `monotonic()`."""

    claim: Claim
    job: AnyJob | None
    options: JobOptions
    waits_since: float
    began_at: float | None
    took: float


class _Pair:
    __slots__ = ("changed", "exemplars_at", "number", "row")

    def __init__(self, number: int, row: list[float]) -> None:
        self.number = number
        self.row = row
        self.changed = False
        # By `monotonic()`.
        self.exemplars_at = [0.0] * (len(RUN_BUCKETS) + 1)


class Meter:
    """Counts this process' jobs, continuing its slot's earlier processes."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._lock = Lock()
        self._totals = list(measures.totals)
        self._pairs = {
            labels: _Pair(number, measures.row(number)) for number, labels in enumerate(measures.pairs())
        }
        # By pair and type: number in memory, and failures.
        self._failures = {
            (each.pair, each.error): [number, each.number] for number, each in enumerate(measures.failures())
        }
        self._own = {labels: pair for labels, pair in self._pairs.items() if labels[1] != OTHERS}
        measures.pid = os.getpid()

    def count_finished(self, jobs: Sequence[Measured]) -> None:
        """Count finished jobs."""
        with self._lock:
            self._write(self._count_runs(jobs, finished=1))

    def count_ended(self, job: Measured, word: str, outcome: Outcome) -> None:
        """Count a job that ended with this word from `Recorder.record`."""
        with self._lock:
            if job.began_at is None:
                pair = self._pair(job)
            else:
                (pair,) = self._count_runs([job], finished=word == FINISHED)
            if word == STALE:
                self._totals[2] += 1
                # An isolated job's lease is lost in another process.
                self._totals[1] += job.options.isolated
            elif (error := error_of(word, outcome)) is not None:
                self._count_failure(pair, error_text(error))
            self._write([pair])

    def count_expired(self, job: Measured) -> None:
        """Count a job buried after its `expires_at`."""
        with self._lock:
            pair = self._pair(job)
            pair.row[memory.EXPIRED] += 1
            self._write([pair])

    def count_lost_lease(self) -> None:
        """Count a lost lease."""
        with self._lock:
            self._totals[1] += 1
            self._write(())

    def _count_runs(self, jobs: Sequence[Measured], finished: int) -> list[_Pair]:
        own = self._own
        changed: list[_Pair] = []
        busy = 0.0
        for job in jobs:
            claim, seconds = job.claim, job.took
            pair = own.get((claim.queue, claim.job_name)) or self._pair(job)
            row = pair.row
            bucket = bisect_left(RUN_BUCKETS, seconds)
            row[bucket] += 1
            row[RUN_SUM] += seconds
            row[memory.FINISHED] += finished
            busy += seconds
            waited = claim.waited_seconds
            if waited is not None and job.began_at is not None:
                waited += job.began_at - job.waits_since
                row[WAIT + bisect_left(WAIT_BUCKETS, waited)] += 1
                row[WAIT_SUM] += waited if waited > 0.0 else 0.0
            if claim.context is not None:
                self._note_exemplar(pair, bucket, seconds, claim.context)
            if not pair.changed:
                pair.changed = True
                changed.append(pair)
        self._totals[0] += busy
        return changed

    def _note_exemplar(self, pair: _Pair, bucket: int, seconds: float, context: str) -> None:
        now = monotonic()
        if now < pair.exemplars_at[bucket] + _EXEMPLAR_SECONDS:
            return
        # Contexts without a trace are not read more often.
        pair.exemplars_at[bucket] = now
        if found := _SAMPLED.search(context):
            exemplar = Exemplar(time(), seconds, bytes.fromhex(found[1]))
            self._measures.write_exemplar(pair.number, bucket, exemplar)

    def _count_failure(self, pair: _Pair, error: str) -> None:
        failures = self._failures.get((pair.number, error))
        if failures is None:
            if len(self._failures) >= memory.ERRORS:
                pair.row[memory.OTHER_FAILURES] += 1
                return
            failures = [self._measures.add_error(pair.number, error), 0]
            self._failures[pair.number, error] = failures
        failures[1] += 1
        self._measures.count_error(int(failures[0]), failures[1])

    def _write(self, pairs: Iterable[_Pair]) -> None:
        self._measures.totals = self._totals
        for pair in pairs:
            pair.changed = False
            self._measures.write_row(pair.number, pair.row)

    def _pair(self, job: Measured) -> _Pair:
        queue, name = job.claim.queue, job.claim.job_name
        if job.job is None:
            # Anyone who stages may choose such a name.
            name = NOT_REGISTERED
        for labels, most in (
            ((queue, name), OWN_PAIRS),
            ((queue, OTHERS), memory.PAIRS - 1),
            ((OTHERS, OTHERS), memory.PAIRS),
        ):
            known = self._pairs.get(labels)
            if known is not None:
                return known
            if len(self._pairs) < most:
                break
        added = _Pair(self._measures.add_pair(*labels), [0.0] * memory.NUMBERS)
        self._pairs[labels] = added
        if labels == (queue, name):
            self._own[labels] = added
        return added

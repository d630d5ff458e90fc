"""Run times of jobs that have finished, worked out from their rows.

A row says when its job was claimed and when it was finished. A process claims several jobs at once and runs them one
after the other, so a job has run since the later of its claim and the end of the job before it in the same process.
What a process with threads, or with async jobs, needs for each is what it needs as a whole: as one worker that is so
much faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from drain.contrib.forecast.throughput import Finished

# Jobs that a process has recorded within this time, in seconds, were recorded by one statement: their times are shared.
_TOGETHER_SECONDS = 0.002


class RunTimes(NamedTuple):
    """Run times in seconds.

    Attributes:
        by_job: Of each queue and job name.
        by_queue: Of each queue.
    """

    by_job: Mapping[tuple[str, str], Sequence[float]]
    by_queue: Mapping[str, Sequence[float]]

    def of(self, queue: str, job_name: str | None = None) -> Sequence[float]:
        """Run times of jobs of a name; of all jobs of the queue, if none of that name is known."""
        return self.by_job.get((queue, job_name or "")) or self.by_queue.get(queue, ())


def run_times(rows: Iterable[Finished]) -> RunTimes:
    """Work out the run time of each of these jobs."""
    of_process: defaultdict[str, list[Finished]] = defaultdict(list)
    for row in rows:
        of_process[row.process].append(row)
    by_job: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    by_queue: defaultdict[str, list[float]] = defaultdict(list)
    for jobs in of_process.values():
        for row, seconds in _in_order(sorted(jobs, key=lambda row: row.finished_at)):
            by_job[row.queue, row.job_name].append(seconds)
            by_queue[row.queue].append(seconds)
    return RunTimes(by_job, by_queue)


def last_ends(rows: Iterable[Finished]) -> dict[str, float]:
    """Return the time at which each process has last finished a job."""
    ends: dict[str, float] = {}
    for row in rows:
        ends[row.process] = max(row.finished_at, ends.get(row.process, 0.0))
    return ends


def _in_order(jobs: Sequence[Finished]) -> Iterable[tuple[Finished, float]]:
    end, at = 0.0, 0
    while at < len(jobs):
        behind = at + 1
        while (
            behind < len(jobs) and jobs[behind].finished_at - jobs[behind - 1].finished_at < _TOGETHER_SECONDS
        ):
            behind += 1
        together = jobs[at:behind]
        begin = max(end, min(row.claimed_at for row in together))
        end = together[-1].finished_at
        for row in together:
            yield row, max(0.0, end - begin) / len(together)
        at = behind

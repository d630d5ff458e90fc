"""Facts of a forecast, read from the tables, the archive and Redis; each question is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from drain.archive import files as archived
from drain.contrib.forecast import throughput
from drain.contrib.forecast.inputs import Added, Known, KnownQueue
from drain.contrib.forecast.run_times import RunTimes, last_ends, run_times
from drain.contrib.forecast.throughput import Finished
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.formatting import duration, visible
from drain.read import queries
from drain.read.capacity import Crew, read_crew
from drain.read.snapshots import snapshot
from drain.tables import pauses, rules
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow
from drain.wire import Producer

# Time of which arrivals are counted, in seconds.
ARRIVAL_SECONDS = 600.0
# Upper bound of the queues that are looked at beside the one that is asked about.
MOST_QUEUES = 50
# Upper bound of the archived rows that are read.
_MOST_ARCHIVED = 20_000
_COLUMNS = ("queue", "job_name", "finished_by", "claimed_at", "finished_at")


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question of a forecast.

    Attributes:
        queue: Queue.
        added: Jobs of a backfill; None: the jobs that wait.
        workers: Number of workers; None: those that work now.
        run_seconds: Run time of the jobs that are asked about; None: that of jobs that have finished.
        arrivals: Jobs that come to the queue in a second; None: as many as lately.
        within: Seconds within which jobs have to have finished to count.
        archive: Path of the archive to take run times from; None: from `finished_jobs`.
    """

    queue: str
    added: Added | None = None
    workers: int | None = None
    run_seconds: float | None = None
    arrivals: float | None = None
    within: float = 3600.0
    archive: str | None = None


def read(connection: Connection, redis: Producer | None, question: Question) -> Known:
    """Read the facts.

    Args:
        connection: In autocommit mode, with no transaction open.
        redis: Redis that knows the workers; None if none is named.
        question: Question.

    Raises:
        DrainError: Nothing is known of the workers, or of run times; the text says what to name.
    """
    crew = read_crew(connection, redis, question.queue) if redis is not None else Crew((), ())
    workers, plain = _workers(crew, question, is_known=redis is not None)
    names = list(dict.fromkeys([question.queue, *(name for each in workers for name in each)]))
    names = names[: MOST_QUEUES + 1]
    with snapshot(connection):
        now = queries.now(connection).timestamp()
        rows = {name: throughput.finished(connection, name, question.within) for name in names}
        held, ruled = pauses.read(connection), rules.read(connection)
        queues = {}
        for name in names:
            facts = _facts(connection, name, rows[name], now)
            queues[name] = replace(
                facts,
                rules=ruled.get(name),
                tokens=_tokens(rows[name], ruled.get(name), now),
                paused_seconds=_paused(held, name, now),
            )
    if question.arrivals is not None:
        queues[question.queue] = replace(queues[question.queue], arrivals=question.arrivals)
    latest = [row for name in names for row in rows[name]]
    placed = [
        row
        for name in names
        for row in _in_places(rows[name], ruled.get(name), sum(name in each for each in workers))
    ]
    times = _with_archived(run_times(placed), question)
    known = Known(
        *(question.queue, queues, workers, times, now),
        busy_since=last_ends(latest),
        run_seconds=question.run_seconds,
        added=question.added,
        plain=plain,
        free={(each.host, each.pid) for each in crew.workers if each.is_free},
    )
    _require_run_times(known, question)
    return known


def _workers(crew: Crew, question: Question, *, is_known: bool) -> tuple[list[Sequence[str]], int]:
    """Return the queues of each worker, and the number of other workers, which run plain RQ jobs."""
    found: list[Sequence[str]] = [each.queues or (question.queue,) for each in crew.workers]
    if question.workers is not None:
        # As those that work now, in turn; of a queue that nobody works on, for this queue alone.
        like = found or [(question.queue,)]
        return [like[number % len(like)] for number in range(question.workers)], 0
    if found:
        plain = crew.plain
        return [queues for queues, each in zip(found, crew.workers, strict=True) if each not in plain], len(
            plain
        )
    queue = visible(question.queue)
    if not is_known:
        raise DrainError(
            "no Redis is named, so the workers are unknown: set DRAIN_REDIS_URL, or give --workers"
        )
    # A queue may have that name, so only the error says what was forgotten.
    is_backfill = question.queue == "backfill" and question.added is None
    hint = "; or --rows and --job for a backfill" if is_backfill else ""
    raise DrainError(
        f"no worker takes jobs of queue {queue}, so they never end: give --workers to forecast with some{hint}"
    )


def _facts(connection: Connection, queue: str, latest: Sequence[Finished], now: float) -> KnownQueue:
    since = now - ARRIVAL_SECONDS
    if len(latest) == throughput.MOST_FINISHED:
        # Of what finished before these, nothing is known.
        since = max(since, latest[-1].finished_at)
    # From the first that came on: a queue may be in use for less than that time.
    jobs, seconds = throughput.arrived(connection, queue, since)
    return KnownQueue(
        queue,
        [*throughput.due(connection, queue), *throughput.delivered(connection, queue)],
        throughput.scheduled(connection, queue),
        throughput.retrying(connection, queue),
        throughput.claimed(connection, queue),
        max(0, jobs - 1) / max(seconds, 1.0),
    )


def _in_places(rows: Sequence[Finished], rules_of: RulesRow | None, workers: int) -> Sequence[Finished]:
    """Let jobs of a queue that has fewer places than workers run in these places, one after the other in each.

    So what the leader needs to give a place to the next job counts, and it is what a short job waits for.
    """
    running = rules_of.running if rules_of else None
    if not running or running > workers:
        return rows
    return [
        # Of the first in each place it is not known when the place was free.
        row._replace(
            process=f"place {number % running}", claimed_at=row.moved_at if number < running else row.due_at
        )
        for number, row in enumerate(sorted(rows, key=lambda row: row.finished_at))
    ]


def _tokens(rows: Sequence[Finished], rules_of: RulesRow | None, now: float) -> float | None:
    """Work out how many tokens of a rate are left, as of a bucket that was full before the first of these jobs."""
    bucket = rules_of.bucket if rules_of else None
    if bucket is None or not rows:
        return None
    begun = sorted(row.moved_at for row in rows)
    level, last = float(bucket.burst), begun[0]
    for moment in begun:
        level = min(bucket.burst, level + (moment - last) * bucket.per_second)
        level, last = max(0.0, level - 1), moment
    return min(bucket.burst, level + max(0.0, now - last) * bucket.per_second)


def _paused(held: Sequence[Pause], queue: str, now: float) -> float:
    mine = [
        each for each in held if each.queue in (None, queue) and each.job_name is None and each.key is None
    ]
    ends = [float("inf") if each.until is None else each.until.timestamp() - now for each in mine]
    return max(ends, default=0.0)


def _with_archived(times: RunTimes, question: Question) -> RunTimes:
    if question.archive is None:
        return times
    job_name = question.added.job_name if question.added else None
    queue = None if question.added else question.queue
    found = archived.rows(question.archive, _COLUMNS, queue=queue, job_name=job_name)
    rows = [
        Finished(
            # Run times of a job that a backfill stages count whatever queue it ran in.
            *(question.queue, row["job_name"], row["finished_by"] or ""),
            *(row["claimed_at"].timestamp(), row["finished_at"].timestamp()),
        )
        for row in islice(found, _MOST_ARCHIVED)
    ]
    older = run_times(rows)
    by_queue = {
        **times.by_queue,
        **({question.queue: older.by_queue[question.queue]} if rows and queue else {}),
    }
    return RunTimes({**times.by_job, **older.by_job}, by_queue)


def _require_run_times(known: Known, question: Question) -> None:
    if question.run_seconds is not None:
        return
    queue = visible(question.queue)
    if question.added is not None:
        job_name = question.added.job_name
        if (question.queue, job_name) not in known.times.by_job:
            raise DrainError(
                f"no job {visible(job_name)} of queue {queue} has finished {_where(question)}: "
                "give --run-seconds, or --archive, or the --queue in which it has run"
            )
    elif not known.times.of(question.queue):
        raise DrainError(
            f"no job of queue {queue} has finished {_where(question)}: give --run-seconds, a longer --within, "
            "or --archive"
        )


def _where(question: Question) -> str:
    return "in the archive" if question.archive else f"within {duration(question.within)}"

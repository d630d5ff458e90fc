"""Rates: whether the tokens of a queue, or of a key, are used up, by the times at which its jobs have begun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from drain.formatting import clock, duration, visible
from drain.read.causes import MOST
from drain.read.explain import estimates
from drain.read.explain.explanation import Finding
from drain.read.explain.places import number
from drain.read.explain.situation import Situation
from drain.tables.columns import ATTEMPTS
from drain.tables.rules import Bucket

# Part of the rate that has to begin lately if the rate is why a job waits: a leader that looks now and then never
# reaches the whole.
_MOST_OF_IT = 0.7
# Time within which a leader takes a job that nothing holds, in seconds.
_PROMPTLY_SECONDS = 1.0
# Times at which jobs of a queue, or of one of its keys, have begun within a window, the earliest first.
_BEGUN = f"""
SELECT begun_at FROM (
    SELECT CASE WHEN {ATTEMPTS} > 1 THEN greatest(moved_at, claimed_at) ELSE moved_at END AS begun_at,
        key
    FROM inflight_jobs WHERE id = ANY (%(running)s::bigint[])
    UNION ALL
    (SELECT greatest(moved_at, claimed_at), key FROM inflight_jobs
     WHERE next_run_at IS NOT NULL AND queue = %(queue)s AND claimed_at IS NOT NULL
     ORDER BY queue, next_run_at LIMIT {MOST})
    UNION ALL
    (SELECT CASE WHEN attempts > 1 THEN claimed_at ELSE moved_at END, key FROM finished_jobs
     WHERE queue = %(queue)s AND superseded_by IS NULL
         AND finished_at > now() - make_interval(secs => %(window)s::float8)
     ORDER BY finished_at DESC LIMIT {MOST})
) AS job
WHERE (%(key)s::text IS NULL OR key = %(key)s::text)
    AND begun_at > clock_timestamp() - make_interval(secs => %(window)s::float8)
ORDER BY begun_at
"""


class _Bucket(Bucket):
    """Bucket of tokens, and when jobs took some."""

    __slots__ = ()

    @property
    def window(self) -> float:
        """Time in seconds after which a job that has begun no longer matters to the bucket, twice over."""
        return 2 * (self.burst + 1) / self.per_second + _PROMPTLY_SECONDS

    def level(self, begun: Sequence[datetime], now: datetime) -> float:
        """Upper bound of the tokens now: those of a bucket that was full before the first of these jobs began."""
        level, last = float(self.burst), begun[0] if begun else now
        for moment in begun:
            level = min(self.burst, level + (moment - last).total_seconds() * self.per_second)
            # Jobs that began before the rate was set do not leave the bucket in debt.
            level, last = max(0.0, level - 1), moment
        return min(self.burst, level + (now - last).total_seconds() * self.per_second)

    def next_at(self, begun: Sequence[datetime], now: datetime, waited: float) -> datetime | None:
        """Time of the next token; None if there is one by now, or the bucket is not why a job waits."""
        if not begun:
            return None
        level = self.level(begun, now)
        if level < 1:
            return now + timedelta(seconds=(1 - level) / self.per_second)
        # While jobs wait, each token is taken as it comes: the next one comes an interval after the last job.
        next_at = begun[-1] + timedelta(seconds=1 / self.per_second)
        enough = len(begun) >= min(MOST, _MOST_OF_IT * self.per_second * self.window)
        prompt = (now - next_at).total_seconds() < _PROMPTLY_SECONDS
        return max(now, next_at) if enough and prompt and waited > _PROMPTLY_SECONDS else None


def rate(situation: Situation) -> Finding | None:
    """Find out whether the rate of the key, or of the queue, is used up."""
    for cause, text, bucket, key in _rates(situation):
        begun = _begun(situation, bucket.window, key)
        waited = (situation.now - situation.due_at).total_seconds()
        if next_at := bucket.next_at(begun, situation.now, waited):
            return _used_up(situation, cause, text, (bucket, key), next_at)
    return None


def rate_of_a_new_leader(situation: Situation) -> Finding | None:
    """Find out whether the leader is so new that it has to wait until a bucket is full again, to exceed no rate."""
    since = datetime.fromisoformat(situation.leader["since"]) if situation.leader else situation.now
    waited = (situation.now - situation.due_at).total_seconds()
    for cause, text, bucket, key in _rates(situation):
        full_at = since + timedelta(seconds=bucket.burst / bucket.per_second)
        if waited > _PROMPTLY_SECONDS and full_at > situation.now and _begun(situation, bucket.window, key):
            known = f"{text}, as far as the leader knows, which has just begun to lead"
            return _used_up(situation, cause, known, (bucket, key), full_at)
    return None


def _rates(situation: Situation) -> Iterator[tuple[str, str, _Bucket, str | None]]:
    rules, key = situation.rules, situation.key
    if (of_key := rules.bucket_of_key) is not None and key is not None:
        text = f"the rate of key {visible(key)}, {rules.rate_per_key}, is used up"
        yield "rate_of_key", text, _Bucket(*of_key), key
    if (of_queue := rules.bucket) is not None:
        text = f"the rate of queue {situation.queue}, {rules.rate}, is used up"
        yield "rate", text, _Bucket(*of_queue), None


def _used_up(
    situation: Situation, cause: str, text: str, whose: tuple[_Bucket, str | None], next_at: datetime
) -> Finding:
    bucket, key = whose
    before = situation.before(of_key=key is not None)
    seconds = (next_at - situation.now).total_seconds() + before / bucket.per_second
    pace = f"one may begin every {duration(1 / bucket.per_second)}"
    estimate = estimates.in_(seconds, f"{number(before)} before it, and {pace}")
    why = f"{text}; the next job may begin at {clock(next_at)}"
    return Finding(cause, why, situation.due_at, estimate, {"next_at": next_at, "before": before})


def _begun(situation: Situation, window: float, key: str | None) -> list[datetime]:
    running = [job.id for job in situation.running]
    parameters = {"queue": situation.queue, "key": key, "running": running, "window": window}
    return [moment for (moment,) in situation.connection.execute(_BEGUN, parameters, binary=True)]

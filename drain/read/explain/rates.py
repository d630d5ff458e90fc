"""Used-up rates."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from drain.formatting import clock, duration, visible
from drain.read.explain import estimates
from drain.read.explain.explanation import Finding
from drain.read.explain.places import number
from drain.read.explain.situation import Situation
from drain.read.tokens import Tokens, read_lacking
from drain.tables.rules import Bucket


def rate(situation: Situation) -> Finding | None:
    """Report a used-up rate."""
    lacking = read_lacking(situation.connection, [situation.rules])
    for cause, text, bucket, key in _rates(situation):
        held = sum(job.is_delivered for job in situation.running if key in (None, job.key))
        tokens = Tokens(bucket, lacking.get((situation.queue, key), 0.0), held)
        if tokens.is_used_up:
            return _used_up(situation, cause, text, tokens, key)
    return None


def _rates(situation: Situation) -> Iterator[tuple[str, str, Bucket, str | None]]:
    rules, key = situation.rules, situation.key
    if (of_key := rules.bucket_of_key) is not None and key is not None:
        yield (
            "rate_of_key",
            f"key {visible(key)} has reached its rate limit, {rules.rate_per_key}",
            of_key,
            key,
        )
    if (of_queue := rules.bucket) is not None:
        yield "rate", f"queue {situation.queue} has reached its rate limit, {rules.rate}", of_queue, None


def _used_up(situation: Situation, cause: str, text: str, tokens: Tokens, key: str | None) -> Finding:
    per_second = tokens.bucket.per_second
    next_at = situation.now + timedelta(seconds=max(0.0, tokens.next_in))
    since = datetime.fromisoformat(situation.leader["since"]) if situation.leader else None
    if since and since + timedelta(seconds=tokens.bucket.burst / per_second) > situation.now:
        text += ", according to a leader that has just taken over"
    before = situation.before(of_key=key is not None)
    seconds = (next_at - situation.now).total_seconds() + before / per_second
    pace = f"one starts every {duration(1 / per_second)}"
    estimate = estimates.in_(seconds, f"{number(before)} ahead, and {pace}")
    why = f"{text}; the next job can start at {clock(next_at)}"
    return Finding(cause, why, situation.due_at, estimate, {"next_at": next_at, "before": before})

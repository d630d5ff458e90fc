"""Tokens of rates, derived from the attempts in the tables.

Each attempt takes a token, refilled at the rate: a bucket is full at the latest
`begin + interval * (attempts from this one on)`. For a new leader, earlier attempts count as begun with its term.

Attempts are read for twice as long as an empty bucket takes to fill. If as many tokens were taken as came in, a bucket
counts as empty: how full it was before is unknown, but jobs wait only while the leader finds no token.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from drain.database.postgres import Connection
from drain.tables.columns import DELIVERED, IS_CLAIMED, finite
from drain.tables.rules import Bucket, RulesRow
from drain.tables.running import CLAIMS_OF_DEAD, CLAIMS_OF_FINISHED

# Attempts read, per kind and queue.
_MOST = 10_000
# In tokens.
_ROUNDING = 1e-6
# The leader takes new tokens within this time.
_PROMPTLY_SECONDS = 0.25
# Queue and key; None for the queue's own bucket.
Whose: TypeAlias = tuple[str, str | None]

_IN_FLIGHT = """
SELECT queue, key, greatest(attempts, fencing_token) AS claims, claimed_at AS at FROM inflight_jobs AS job"""
_FULL_AT = f"""
WITH leader AS (
    SELECT coalesce(max(leader_since), '-infinity'::timestamptz) AS since FROM drain_state
), known AS (
    SELECT queue, 2 * max(burst * seconds) AS window
    FROM unnest(%(queues)s::text[], %(intervals)s::float8[], %(bursts)s::bigint[]) AS bucket (queue, seconds, burst)
    GROUP BY queue
), attempts AS (
    ({_IN_FLIGHT} WHERE {IS_CLAIMED} ORDER BY lease_expires_at DESC LIMIT {_MOST})
    UNION ALL
    SELECT queue, key, {CLAIMS_OF_DEAD}, died_at FROM (
        SELECT queue, key, reason, attempts, fencing_token, died_at FROM dead_jobs
        ORDER BY id DESC LIMIT {_MOST}) AS latest
    UNION ALL
    SELECT job.* FROM known, LATERAL (
        ({_IN_FLIGHT} WHERE next_run_at IS NOT NULL AND job.queue = known.queue AND claimed_at IS NOT NULL
         ORDER BY queue, next_run_at LIMIT {_MOST})
        UNION ALL
        ({_IN_FLIGHT} WHERE {DELIVERED} AND job.queue = known.queue AND claimed_at IS NOT NULL
         ORDER BY delivery LIMIT {_MOST})
        UNION ALL
        (SELECT queue, key, {CLAIMS_OF_FINISHED}, claimed_at FROM finished_jobs AS job
         WHERE job.queue = known.queue AND finished_at > now() - make_interval(secs => known.window)
             AND {CLAIMS_OF_FINISHED} > 0
         ORDER BY finished_at DESC LIMIT {_MOST})) AS job
), taken AS (
    SELECT bucket.*, since, CASE WHEN of_key THEN key END AS whose, greatest(at, since) AS begun_at,
        sum(least(claims, burst)) OVER (
            PARTITION BY bucket.queue, of_key, CASE WHEN of_key THEN key END ORDER BY greatest(at, since) DESC) AS count
    FROM leader, unnest(%(queues)s::text[], %(of_keys)s::boolean[], %(intervals)s::float8[], %(bursts)s::bigint[])
        AS bucket (queue, of_key, seconds, burst)
    JOIN attempts ON attempts.queue = bucket.queue AND claims > 0 AND (key IS NOT NULL OR NOT of_key)
    WHERE greatest(at, since) > now() - make_interval(secs => 2 * burst * seconds)
        AND (at > since OR at > since - make_interval(secs => burst * seconds))
)
SELECT queue, whose, CASE
    -- A token may be taken late; with a burst of 1, the last attempt says it all.
    WHEN max(count)::bigint >= 2 * max(burst) - 1 AND max(burst) > 1
        AND max(since) <= now() - make_interval(secs => 2 * max(burst * seconds)) THEN max(burst * seconds)
    ELSE extract(epoch FROM {finite("max(begun_at + make_interval(secs => count * seconds))")} - clock_timestamp())
    END::float8
FROM taken GROUP BY queue, of_key, whose
"""


class Tokens(NamedTuple):
    """Bucket at one instant.

    Attributes:
        full_in: Seconds until full if nothing starts; at most 0 if full.
        held: Tokens reserved for delivered jobs.
    """

    bucket: Bucket
    full_in: float = 0.0
    held: int = 0

    @property
    def is_used_up(self) -> bool:
        """True if it is empty, or has only just been refilled."""
        missing = math.ceil(max(0.0, self.full_in) * self.bucket.per_second - _ROUNDING) + self.held
        return missing > 0 and self.bucket.burst - missing < max(
            1.0, _PROMPTLY_SECONDS * self.bucket.per_second
        )

    @property
    def next_in(self) -> float:
        """Seconds until the next token, if all delivered jobs start now."""
        return max(0.0, self.full_in) - (self.bucket.burst - 1 - self.held) / self.bucket.per_second


def read_lacking(connection: Connection, rules: Collection[RulesRow]) -> dict[Whose, float]:
    """Read seconds until buckets are full; full ones may be missing."""
    buckets = [
        (each.queue, of_key, bucket)
        for each in rules
        for of_key, bucket in ((False, each.bucket), (True, each.bucket_of_key))
        if bucket is not None
    ]
    if not buckets:
        return {}
    parameters = {
        "queues": [queue for queue, *_ in buckets],
        "of_keys": [of_key for _, of_key, _ in buckets],
        "intervals": [1 / bucket.per_second for *_, bucket in buckets],
        "bursts": [bucket.burst for *_, bucket in buckets],
    }
    return {(queue, key): seconds for queue, key, seconds in connection.execute(_FULL_AT, parameters)}

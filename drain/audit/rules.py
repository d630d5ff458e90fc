"""Conditions that no row of a table may meet."""

from __future__ import annotations

from typing import NamedTuple

from drain.read.queries import TABLES
from drain.tables.columns import MARKER

# A claim raises the token by one and attempts by at most one. Retrying a dead job moves attempts into the history, but
# keeps the token.
_CLAIMS_ON_RECORD = """(CASE WHEN history IS NULL THEN 0 ELSE (
    SELECT coalesce(sum(item::numeric), 0)
    FROM pg_catalog.jsonb_path_query(history, '$[*].attempts ? (@.type() == "number")') AS item) END)"""
# With a second's tolerance: clocks may be set back a little, and a standby's may lag.
_EARLIER = "{} < {} - interval '1 second'"
# A superseded job, and the end of a flow, need no claim.
_HAS_RUN = f"superseded_by IS NULL AND job_name <> '{MARKER}'"
# Time for a leader to apply changed rules and pauses, with room for late commits.
FOLLOWED_SECONDS = 30
# Claimed during an endless pause. `paused_since`: when the leader applied the first, in epoch seconds, or infinity.
# Timed pauses are left out, as their row may outlive them and be prolonged.
_CLAIMED_IN_A_PAUSE = f"""claimed_at > to_timestamp(%(paused_since)s::float8) AND EXISTS (
    SELECT FROM queue_pauses AS pause
    WHERE pause.until IS NULL AND {{table}}.claimed_at > pause.paused_at + interval '{FOLLOWED_SECONDS} seconds'
        AND coalesce(pause.queue, '') = ANY (ARRAY['', {{table}}.queue])
        AND coalesce(pause.job_name, '') = ANY (ARRAY['', {{table}}.job_name])
        AND coalesce(pause.key, '') = ANY (ARRAY['', coalesce({{table}}.key, '')]))"""


class Rule(NamedTuple):
    """Condition that no row may meet."""

    check: str
    table: str
    condition: str
    explanation: str


RULES = (
    *(
        Rule("once", table, "id > %(last_id)s", f"in {table}, with ids that were never assigned")
        for table in TABLES.values()
    ),
    Rule("claimed", "finished_jobs", f"fencing_token < 1 AND {_HAS_RUN}", "finished without a claim's token"),
    Rule("claimed", "finished_jobs", f"attempts < 1 AND {_HAS_RUN}", "finished without an attempt"),
    Rule(
        "once",
        "finished_jobs",
        "superseded_by = id OR superseded_by < 1 OR superseded_by > %(last_id)s",
        "superseded by their own id or an unused one",
    ),
    Rule("claimed", "finished_jobs", "claimed_at IS NULL", "finished but never claimed"),
    Rule(
        "claimed",
        "finished_jobs",
        _EARLIER.format("finished_at", "claimed_at"),
        "finished before they were claimed, or the database's clock was set back",
    ),
    Rule(
        "claimed",
        "finished_jobs",
        _EARLIER.format("claimed_at", "moved_at"),
        "claimed before they were drained, or the database's clock was set back",
    ),
    Rule(
        "tokens",
        "staged_jobs",
        f"fencing_token::numeric < {_CLAIMS_ON_RECORD}",
        "in staged_jobs, with a token lower than the number of claims on record",
    ),
    *(
        Rule(
            "tokens",
            table,
            f"fencing_token::numeric < attempts::numeric + {_CLAIMS_ON_RECORD}",
            f"in {table}, with a token lower than the number of claims on record",
        )
        for table in ("inflight_jobs", "finished_jobs", "dead_jobs")
    ),
    *(
        Rule("tokens", table, "attempts < 0", f"in {table}, with more attempts undone than made")
        for table in ("inflight_jobs", "dead_jobs")
    ),
    Rule(
        "conditions",
        "inflight_jobs",
        "lease_expires_at IS NOT NULL AND next_run_at IS NOT NULL",
        "both claimed and waiting for the next attempt",
    ),
    Rule(
        "conditions",
        "inflight_jobs",
        "lease_expires_at IS NOT NULL AND (claimed_at IS NULL OR claimed_by IS NULL OR fencing_token < 1)",
        "leased without a claim: no time, worker or token",
    ),
    Rule(
        "deliveries",
        "inflight_jobs",
        "delivery > %(last_delivery)s",
        "delivered with numbers that were never assigned",
    ),
    Rule(
        "paused",
        "inflight_jobs",
        f"lease_expires_at IS NOT NULL AND {_CLAIMED_IN_A_PAUSE.format(table='inflight_jobs')}",
        "claimed despite a pause",
    ),
    Rule(
        "paused",
        "finished_jobs",
        f"{_HAS_RUN} AND {_CLAIMED_IN_A_PAUSE.format(table='finished_jobs')}",
        "claimed despite a pause, and finished",
    ),
)

"""Invariants that hold at the end of every drill, checked by the tables alone."""

from __future__ import annotations

from collections.abc import Sequence

from drain.database.postgres import Connection
from drills.rows import first_row, value
from drills.verdict import Evidence

_ORDERS = "SELECT count(*) FROM orders"
_UNFINISHED = """
SELECT count(*) FROM orders
WHERE id NOT IN (SELECT (job_args ->> 0)::bigint FROM finished_jobs)
"""
_FORGOTTEN = (
    "SELECT count(*) FROM unnest(%s::bigint[]) AS confirmed (id) WHERE id NOT IN (SELECT id FROM orders)"
)
_EFFECTS = """
SELECT count(*) FILTER (WHERE effects = 1), count(*) FILTER (WHERE effects > 1), count(*) FILTER (WHERE effects = 0)
FROM (
    SELECT count(effects.order_id) AS effects
    FROM orders LEFT JOIN effects ON effects.order_id = orders.id GROUP BY orders.id
) AS counted
"""
_STRANGE = """
SELECT count(*) FROM (
    SELECT order_id AS id FROM effects UNION SELECT (job_args ->> 0)::bigint FROM finished_jobs
) AS traces WHERE id NOT IN (SELECT id FROM orders)
"""
# Jobs claimed before their commit: the server has recorded both times, by the same clock.
_EARLY = """
SELECT count(*) FROM finished_jobs AS job JOIN orders ON orders.id = (job_args ->> 0)::bigint
WHERE job.claimed_at < pg_xact_commit_timestamp(orders.xmin)
"""


def unfinished(connection: Connection) -> int:
    """Count the committed orders that have no finished job yet."""
    return int(value(connection, _UNFINISHED))


def check(connection: Connection, confirmed: Sequence[int] = ()) -> list[Evidence]:
    """Compare the orders with the jobs, and with the effects of the jobs.

    Args:
        connection: Connection to the drill's database, in which all processes are idle.
        confirmed: Ids of orders whose commit was confirmed to the application.
    """
    return [
        _nothing_is_lost(connection, confirmed),
        _effects_happened_once(connection),
        _nothing_ran_early(connection),
    ]


def _nothing_is_lost(connection: Connection, confirmed: Sequence[int]) -> Evidence:
    orders, missing = value(connection, _ORDERS), unfinished(connection)
    forgotten = value(connection, _FORGOTTEN, list(confirmed))
    return Evidence(
        "finished_jobs has the job of every committed order",
        f"{orders - missing} of {orders}" + (f", and {forgotten} commits are forgotten" if forgotten else ""),
        holds=orders > 0 and not missing and not forgotten,
    )


def _effects_happened_once(connection: Connection) -> Evidence:
    once, twice, never = first_row(connection, _EFFECTS) or (0, 0, 0)
    return Evidence(
        "effects has the row of each job exactly once",
        f"{once} once, {twice} twice, {never} never",
        holds=once > 0 and not twice and not never,
    )


def _nothing_ran_early(connection: Connection) -> Evidence:
    strange, early = value(connection, _STRANGE), value(connection, _EARLY)
    return Evidence(
        "nothing ran without a commit, or before it",
        f"{strange} without, {early} before",
        holds=not strange and not early,
    )

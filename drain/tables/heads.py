"""Loose index scans: one look-up per queue, however many rows follow."""

from __future__ import annotations


def heads(table: str, condition: str, *order: str, by: str = "queue") -> str:
    """Return a WITH clause whose `heads` has the first row of each queue.

    Args:
        condition: That of a partial index, and conditions on index columns before `by`.
        order: Index columns behind `by`, which are selected too.
        by: Column whose distinct values are found.
    """
    columns = ", ".join((by, *order))
    return f"""
WITH RECURSIVE heads AS (
    (SELECT {columns} FROM {table} WHERE {condition} ORDER BY {columns} LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads, LATERAL (
        SELECT {columns} FROM {table} WHERE {condition} AND {by} > heads.{by}
        ORDER BY {columns} LIMIT 1) AS following
)
"""

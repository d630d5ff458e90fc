"""Loose index scans: the first row of each queue, by one index look-up for each, however many rows lie behind it."""

from __future__ import annotations


def heads(table: str, condition: str, *order: str, by: str = "queue") -> str:
    """Return a WITH clause: `heads` has the first row of each queue.

    Args:
        table: Name of the table.
        condition: Condition of the rows; that of a partial index, and conditions on columns of the index before `by`.
        order: Columns of the index behind `by`, which the rows have too.
        by: Column with the queue, or another one of whose values the first rows are found.
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

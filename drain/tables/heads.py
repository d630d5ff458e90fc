"""Loose index scans: one look-up per queue, however long."""

from __future__ import annotations


def heads(table: str, condition: str, *order: str, by: str = "queue") -> str:
    """Return a WITH clause whose `heads` has the first row for each value of `by`.

    Args:
        condition: Of a partial index, or on index columns before `by`.
        order: Further index columns.
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

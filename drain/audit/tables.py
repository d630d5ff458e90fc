"""Checks made in one snapshot of the tables.

One pass per table counts its rows and breaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from drain.audit.report import SAMPLES, Breach
from drain.audit.rules import FOLLOWED_SECONDS, RULES
from drain.database import postgres
from drain.database.postgres import Connection
from drain.read import queries
from drain.read.queries import TABLES
from drain.tables import leader_progress

_LAST_ID = "SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM {}"
_PAUSED_SINCE = f"""
SELECT CASE WHEN count(*) = 0 THEN 'Infinity'::float8 ELSE date_part('epoch',
    greatest(pg_catalog.min(paused_at), %s::timestamptz) + interval '{FOLLOWED_SECONDS} seconds') END
FROM queue_pauses WHERE until IS NULL
"""
_STATE_ROWS = "SELECT count(*) FROM drain_state"
# Unfinished ids are looked up in finished_jobs, which may be a hundred times larger.
_PLACES = f"""
WITH unfinished AS (
    SELECT id, 'staged' AS place FROM staged_jobs
    UNION ALL SELECT id, 'inflight' FROM inflight_jobs
    UNION ALL SELECT id, 'dead' FROM dead_jobs
), placed AS (
    SELECT id, place FROM unfinished
    UNION ALL SELECT id, 'finished' FROM finished_jobs WHERE id IN (SELECT id FROM unfinished)
), several AS (
    SELECT id,
        least(2, count(*) FILTER (WHERE place = 'staged')) AS staged,
        least(2, count(*) FILTER (WHERE place = 'inflight')) AS inflight,
        least(2, count(*) FILTER (WHERE place = 'finished')) AS finished,
        least(2, count(*) FILTER (WHERE place = 'dead')) AS dead
    FROM placed GROUP BY id HAVING count(*) > 1
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY staged, inflight, finished, dead ORDER BY id) AS number FROM several
)
SELECT staged, inflight, finished, dead, count(*),
    pg_catalog.array_agg(id ORDER BY id) FILTER (WHERE number <= {SAMPLES})
FROM numbered GROUP BY staged, inflight, finished, dead ORDER BY 1, 2, 3, 4
"""
_SHARED_DELIVERIES = f"""
WITH shared AS (SELECT delivery FROM inflight_jobs GROUP BY delivery HAVING count(*) > 1),
found AS (SELECT id, row_number() OVER (ORDER BY id) AS number FROM inflight_jobs JOIN shared USING (delivery))
SELECT count(*), pg_catalog.array_agg(id ORDER BY id) FILTER (WHERE number <= {SAMPLES}) FROM found
"""
_SHARED_EXPLANATION = "in flight with shared delivery numbers"
# A refused token implies a later claim with a higher one.
_REFUSED_ABOVE = f"""
WITH refused AS (
    SELECT id, max(fencing_token) AS token FROM stale_finishes GROUP BY id
), jobs AS (
    SELECT id, fencing_token FROM staged_jobs WHERE id IN (SELECT id FROM refused)
    UNION ALL SELECT id, fencing_token FROM inflight_jobs WHERE id IN (SELECT id FROM refused)
    UNION ALL SELECT id, fencing_token FROM finished_jobs WHERE id IN (SELECT id FROM refused)
    UNION ALL SELECT id, fencing_token FROM dead_jobs WHERE id IN (SELECT id FROM refused)
), found AS (
    SELECT id, row_number() OVER (ORDER BY id) AS number FROM refused JOIN jobs USING (id) WHERE token > fencing_token
)
SELECT count(*), pg_catalog.array_agg(id ORDER BY id) FILTER (WHERE number <= {SAMPLES}) FROM found
"""
_REFUSED_EXPLANATION = "with a token lower than one refused as stale"


def check(connection: Connection, progress: Callable[[str], None]) -> tuple[dict[str, int], list[Breach]]:
    """Count rows and find breaches, all at one instant.

    Args:
        connection: In autocommit mode.
        progress: Called with each step.
    """
    breaches: list[Breach] = []
    counts: dict[str, int] = {}
    with _snapshot(connection):
        # A truncated partition is empty in older snapshots too, so lock first; rolling back the savepoint unlocks
        # before the longest pass.
        with connection.transaction(force_rollback=True):
            connection.execute("LOCK TABLE staged_jobs IN ACCESS SHARE MODE")
            parameters = _parameters(connection, breaches)
            for name in ("staged", "inflight", "dead"):
                progress(f"reading {TABLES[name]}")
                counts[name] = _apply_rules(connection, TABLES[name], parameters, breaches)
            progress("looking for ids in two tables")
            breaches += _in_several_tables(connection)
            breaches += _breach_of(connection, _SHARED_DELIVERIES, "deliveries", _SHARED_EXPLANATION)
            breaches += _breach_of(connection, _REFUSED_ABOVE, "tokens", _REFUSED_EXPLANATION)
        progress("reading finished_jobs")
        counts["finished"] = _apply_rules(connection, "finished_jobs", parameters, breaches)
    return {name: counts[name] for name in TABLES}, breaches


@contextmanager
def _snapshot(connection: Connection) -> Iterator[None]:
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL jit = off")
        yield


def _parameters(connection: Connection, breaches: list[Breach]) -> dict[str, Any]:
    (sequence,) = postgres.fetch_one(connection, "SELECT pg_get_serial_sequence('staged_jobs', 'id')")
    (last_id,) = postgres.fetch_one(connection, _LAST_ID.format(sequence))
    last_delivery, pushed_up_to = leader_progress.progress(connection)
    (rows,) = postgres.fetch_one(connection, _STATE_ROWS)
    if rows != 1:
        breaches.append(Breach("deliveries", "rows in drain_state instead of one", rows))
    if pushed_up_to > last_delivery:
        explanation = f"watermark, {pushed_up_to}, above the last assigned number, {last_delivery}"
        breaches.append(Breach("deliveries", explanation))
    # Only a leader calls jobs back.
    leader = queries.leader(connection)
    (paused_since,) = postgres.fetch_one(
        connection, _PAUSED_SINCE, (leader["since"] if leader else "infinity",)
    )
    return {"last_id": last_id, "last_delivery": last_delivery, "paused_since": paused_since}


def _apply_rules(
    connection: Connection, table: str, parameters: dict[str, Any], breaches: list[Breach]
) -> int:
    rules = [rule for rule in RULES if rule.table == table]
    filters = "".join(f", count(*) FILTER (WHERE {rule.condition})" for rule in rules)
    rows, *found = postgres.fetch_one(connection, f"SELECT count(*){filters} FROM {table}", parameters)
    for rule, count in zip(rules, found, strict=True):
        if count:
            statement = f"SELECT id FROM {table} WHERE {rule.condition} ORDER BY id LIMIT {SAMPLES}"
            ids = tuple(id_ for (id_,) in connection.execute(statement, parameters))
            breaches.append(Breach(rule.check, rule.explanation, count, ids))
    return int(rows)


def _in_several_tables(connection: Connection) -> Iterator[Breach]:
    for *times, count, ids in connection.execute(_PLACES):
        yield Breach("once", f"in {_places(times)}", count, tuple(ids))


def _places(times: list[Any]) -> str:
    places = zip(("staged", "inflight", "finished", "dead"), times, strict=True)
    return " and ".join(
        f"{TABLES[name]}{' more than once' if number > 1 else ''}" for name, number in places if number
    )


def _breach_of(connection: Connection, statement: str, check_name: str, explanation: str) -> list[Breach]:
    count, ids = postgres.fetch_one(connection, statement)
    return [Breach(check_name, explanation, count, tuple(ids))] if count else []

"""Statements that stage batches and flows, for `drain.jobs.conversations`."""

from __future__ import annotations

from drain.tables.columns import BLOCKED_AT

# Columns of an element; it also has `node`, `event` and `after`.
_TYPES = {
    "job_name": "text",
    "job_args": "jsonb",
    "job_kwargs": "jsonb",
    "queue": "text",
    "priority": "integer",
    "expires_at": "timestamptz",
    "tag": "text",
    "max_attempts": "integer",
    "timeout_seconds": "integer",
    "context": "jsonb",
    "key": "text",
    "unique_key": "text",
    "keep": "text",
    "quiet_seconds": "double precision",
}
_DEFAULTS = {"queue": "coalesce(queue, 'default')", "priority": "coalesce(priority, 0)"}
_DUE = "coalesce(scheduled_at, now()) + make_interval(secs => coalesce(quiet_seconds, 0))"
_RECORD = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
_FLOW = "CAST(%(flow)s AS bigint)"


def _staged(waits: str) -> str:
    values = {name: _DEFAULTS.get(name, name) for name in _TYPES}
    values["scheduled_at"] = f"CASE WHEN {waits} THEN {BLOCKED_AT} ELSE {_DUE} END"
    values["starts_at"] = f"CASE WHEN {waits} THEN {_DUE} END"
    return (
        "WITH given AS MATERIALIZED (SELECT position, new.* "
        "FROM jsonb_array_elements(CAST(%(jobs)s AS jsonb)) WITH ORDINALITY AS item (value, position), "
        f"jsonb_to_record(value) AS new ({_RECORD}, scheduled_at timestamptz, node text, event text, after jsonb)), "
        f"staged AS (INSERT INTO staged_jobs ({', '.join(values)}) SELECT {', '.join(values.values())} "
        "FROM given ORDER BY position RETURNING id), "
        "numbered AS MATERIALIZED (SELECT pg_catalog.array_agg(id ORDER BY id) AS ids FROM staged), "
    )


# Options as JSON; returns the id, and whether it is new.
OPEN = "SELECT id, is_new FROM drain_flow(CAST(%(options)s AS jsonb))"
CALLBACKS = (
    f"{_staged('true')}called AS MATERIALIZED ("
    f"SELECT pg_catalog.count(drain_callback({_FLOW}, ids[position], event)) FROM numbered, given) "
    "SELECT pg_catalog.unnest(ids) FROM numbered, called"
)
# Predecessors in `after` are ids, or positions from -1 down of earlier elements.
NODES = (
    f"{_staged('''after <> CAST('[]' AS jsonb)''')}joined AS MATERIALIZED ("
    f"SELECT drain_join({_FLOW}, ids, ARRAY (SELECT node FROM given ORDER BY position)) FROM numbered), "
    "dependent AS MATERIALIZED (SELECT drain_after(pg_catalog.array_agg(ids[position]), "
    "pg_catalog.array_agg(CASE WHEN parent < 0 THEN ids[- parent] ELSE parent END), pg_catalog.array_agg(pair ->> 1)) "
    "FROM joined, numbered, given, jsonb_array_elements(after) AS edge (pair), "
    "LATERAL (SELECT CAST(pair ->> 0 AS bigint)) AS other (parent)) "
    "SELECT pg_catalog.unnest(ids) FROM joined, numbered, dependent"
)
# Of nodes of an earlier flow, in order; none once its end has been deleted.
IDS = (
    f"SELECT drain_node({_FLOW}, name) FROM drain_job_state({_FLOW}) AS flow_end, "
    "jsonb_array_elements_text(CAST(%(names)s AS jsonb)) WITH ORDINALITY AS given (name, position) ORDER BY position"
)
PROGRESS = f"SELECT total, finished, dead, unfinished, state FROM drain_flow_progress({_FLOW})"

"""The leader's looks at waits and events are answered by index, whatever else the tables hold."""

from __future__ import annotations

import psycopg
import pytest

from drain.enqueuer.enqueuer import SESSION
from drain.tables import waits
from tests.database.test_query_plans import scans_of
from tests.helpers import query

MANY = 20_000
_EACH = f"FROM generate_series(1, {MANY}) AS id"
FILL = f"""
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery,
    next_run_at)
SELECT id, 'm.f', '[]', '{{}}', 'default', 0, now(), now(), id, '9999-12-29Z' {_EACH};
INSERT INTO job_waits (job_id, name, event, deadline, staged_by, fencing_token)
SELECT id, 'a', 'event ' || id, now() + interval '1 day', 'postgres', 1 {_EACH};
INSERT INTO job_events (name, payload, emitted_by) SELECT 'other ' || id, '1', 'postgres' {_EACH};
INSERT INTO job_steps (job_id, name, result, seconds, fencing_token) SELECT id, 'b', '1', 0, 1 {_EACH};
"""
LATER = "INSERT INTO job_events (name, payload, emitted_by) VALUES ('event 7', '1', 'postgres')"


@pytest.mark.parametrize("is_analyzed", [False, True])
def test_a_look_reads_only_new_waits_and_events(database_url: str, *, is_analyzed: bool) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("; ".join(SESSION).encode())
        statement = waits.MATCH.replace("%(xmax)s", "$1").replace("%(running)s", "$2")
        connection.execute(f"PREPARE look AS {statement}".encode())
        # Planned while the tables are empty.
        connection.execute("EXECUTE look('1', '{}')")
        query(database_url, FILL)
        if is_analyzed:
            query(database_url, "ANALYZE")
        ((xmax,),) = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchall()
        query(database_url, LATER)
        look = f"EXECUTE look('{xmax}', '{{}}')"
        scanned = scans_of(connection, look)
        ((_, *found),) = connection.execute(look.encode()).fetchall()
    assert max(scanned.values()) <= 10, scanned
    assert found == [True, 1, 1, 1]

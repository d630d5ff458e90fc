"""What a leader asks of a queue with rules is answered from an index, whatever else the tables hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from drain.tables import keyed, running, staged
from drain.tables.columns import id_array
from tests.database.test_query_plans import scans
from tests.helpers import query

KEYS = 300
OF_A_KEY = 10
NOTHING_PAUSED: dict[str, Any] = {"names": [], "pairs": [], "keys": []}


@pytest.fixture(params=["analyzed", "analyzed while it was empty", "truncated"])
def many_keys(database_url: str, request: pytest.FixtureRequest) -> str:
    """3,000 rows of 300 keys in three partitions, and as many of another queue; in flight, finished and dead too."""
    if request.param == "analyzed while it was empty":
        query(database_url, "VACUUM ANALYZE")
    if request.param == "truncated":
        query(database_url, "TRUNCATE staged_jobs, inflight_jobs, dead_jobs")
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, queue, key, priority, staged_at, scheduled_at) SELECT 'm.f', queue, "
        "CASE WHEN number %% 3 > 0 THEN 'k' || number %% %s END, number %% 2, turn, turn FROM "
        "generate_series(1, %s) AS number, unnest(ARRAY['a', 'b']) AS queue, "
        "LATERAL (SELECT now() - number %% 3 * interval '5 s') AS staged (turn)",
        KEYS,
        KEYS * OF_A_KEY,
    )
    columns = "id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, key"
    values = (
        "id, 'm.f', '[]', '{}', CASE id % 2 WHEN 0 THEN 'a' ELSE 'b' END, 0, now(), now(), 'k' || id % 300"
    )
    rows = "FROM generate_series(1, 6000) AS ids (id)"
    query(
        database_url,
        f"INSERT INTO inflight_jobs ({columns}, delivery, next_run_at) SELECT {values}, id, "
        f"CASE WHEN id <= 600 THEN now() + (id - 301) * interval '1 s' END {rows}",
    )
    query(
        database_url,
        f"INSERT INTO finished_jobs ({columns}, moved_at, claimed_at, finished_at, attempts, fencing_token) "
        f"SELECT {values}, now(), now(), now() - id * interval '1 s', 1, 1 {rows}",
    )
    query(
        database_url,
        f"INSERT INTO dead_jobs ({columns}, reason, explanation) SELECT {values}, 'failed', 'why' {rows}",
    )
    if request.param == "analyzed":
        query(database_url, "ANALYZE")
    return database_url


def wanted(count: int, keys: int) -> dict[str, Any]:
    return NOTHING_PAUSED | {
        "queue": "a",
        "keys": [f"k{number * 3 + 1}" for number in range(keys)],
        "priorities": id_array([-1] * keys),
        "ids": id_array([0] * keys),
        "counts": id_array([count] * keys),
    }


HEADS = NOTHING_PAUSED | {"queue": "a", "key": "k2", "priority": 1, "limit": 50}
LANES = NOTHING_PAUSED | {"queue": "a", "kinds": "{0,1,2,3}", "limit": 100}
# Statement, its parameters, the only index that it reads, and the most rows of it. A look at the rows of three
# partitions in one order reads one row of each of the two others.
ASKED: dict[str, tuple[str, Mapping[str, Any], str, int]] = {
    "heads of keys": (keyed.HEADS, HEADS, "staged_jobs_by_key", 3 * 51 + 3),
    "heads of lanes": (keyed.LANES, LANES | {"each": False}, "staged_jobs_in_lanes", 12),
    "heads of priorities of lanes": (keyed.LANES, LANES | {"each": True}, "staged_jobs_in_lanes", 24),
    "rows of keys": (keyed.READ_KEYS, wanted(2, 50), "staged_jobs_by_key", 50 * 4),
    "rows of lanes": (
        keyed.READ_LANES,
        wanted(20, 2) | {"kinds": "{0,2}", "up_to": "{0,9}", "keys": []},
        "staged_jobs_in_lanes",
        2 * 22,
    ),
    "dead jobs": (keyed.HELD_KEYS, wanted(1, 40) | {"dead": True, "waiting": False}, "dead_jobs_by_key", 40),
    "waiting jobs": (
        keyed.HELD_KEYS,
        wanted(1, 40) | {"dead": False, "waiting": True},
        "inflight_jobs_holding",
        40,
    ),
    "first retries": (running.FIRST_RETRIES, wanted(1, 40), "inflight_jobs_holding", 40),
    "due retries": (running.DUE_RETRIES, HEADS | {"keys": ["k1"], "limit": 20}, "inflight_jobs_waiting", 20),
}


def test_reading_keys_lanes_and_retries_touches_no_other_rows(many_keys: str) -> None:
    for name, (statement, parameters, index, most) in ASKED.items():
        found = scans(many_keys, statement, parameters)

        assert set(found) == {index}, name
        assert found[index] <= most, name


def test_queries_by_id_use_the_primary_key(many_keys: str) -> None:
    staged_keys = {f"staged_jobs_ready_{turn}_pkey" for turn in range(3)}
    ids = [id_ for (id_,) in query(many_keys, "SELECT id FROM staged_jobs ORDER BY id DESC LIMIT 50")]
    for statement, more in ((keyed.READ_ROWS, ()), (keyed.LOCK, ("a",))):
        found = scans(many_keys, statement, (id_array(ids), *more))
        assert (set(found), sum(found.values())) == (staged_keys, 50)

    recent = HEADS | {"after": ids[20], "limit": 2000}
    found = scans(many_keys, keyed.RECENT, recent)
    assert (set(found), sum(found.values())) == (staged_keys, 20)
    assert sum(scans(many_keys, keyed._LAST_ID).values()) <= 3
    asked = {"ids": id_array(range(100)), "queue": "a"}
    of_cancelled = {"cancelled_claims_of_queues": 0}
    assert scans(many_keys, running.STILL_RUNNING, asked) == {"inflight_jobs_pkey": 99} | of_cancelled


def test_the_first_rows_of_ordered_keys_are_read_without_others(many_keys: str) -> None:
    query(
        many_keys,
        "INSERT INTO staged_jobs (job_name, queue, key, staged_at, scheduled_at) SELECT 'm.f', 'a', 'k' || number, "
        "now() - interval '1 hour', now() + (number - 10.5) * interval '1 min' FROM generate_series(1, 300) AS number",
    )
    found = scans(many_keys, keyed.FIRST_OF_KEYS, wanted(1, 50))

    assert found.keys() == {"staged_jobs_by_key", "staged_jobs_in_lanes", "staged_jobs_coming_due"}
    assert found["staged_jobs_by_key"] <= 3 * 2 * 50
    assert found["staged_jobs_in_lanes"] <= 2 * 3
    assert found["staged_jobs_coming_due"] <= 10

    ids = [id_ for (id_,) in query(many_keys, "SELECT id FROM staged_jobs_scheduled ORDER BY id LIMIT 10")]
    found = scans(many_keys, staged.MATURE_THESE, (id_array(ids),))
    assert all(name.endswith("_pkey") for name in found)
    assert sum(found.values()) <= 30


def test_recently_started_jobs_are_read_by_their_finish_time(many_keys: str) -> None:
    found = scans(many_keys, running.BEGUN, {"queue": "a", "seconds": 60.0, "limit": 1000})

    assert found["finished_jobs_latest"] <= 40

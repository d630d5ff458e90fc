"""What the enqueuer and the workers ask again and again is answered from an index, whatever else the tables hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from drain.database import postgres
from drain.enqueuer.enqueuer import SESSION
from drain.read import queue_overview, states, waiting_by_cause
from drain.read.explain import places
from drain.tables import (
    claims,
    finishes,
    lanes,
    leases,
    outcomes,
    predecessors,
    redeliveries,
    staged,
    unique,
    waiting,
)
from drain.tables.claims import Claim
from drain.tables.columns import id_array
from drain.tables.limits import Limits
from drain.workers.context.connection_cache import connect
from drain.workers.lease import database
from tests.helpers import PATIENCE_SECONDS, deliveries, query, stage_jobs, wait_until

MANY = 20_000
WHOLE_INDEXES = """
SELECT part.relname, whole.relname FROM pg_inherits
JOIN pg_class AS part ON part.oid = inhrelid JOIN pg_class AS whole ON whole.oid = inhparent
WHERE part.relkind = 'i'
"""
# The lane of urgent rows without a key, from its start on.
MOVED_NUMBERS = {"before": 0, "last_delivery": 0, "pushed_up_to": 0}
WHOLE_LANE = {"kinds": "{0}", "queues": '{"default"}', "priorities": "{-2147483648}", "ids": "{0}"}
REDELIVER: dict[str, Any] = {"last_delivery": 0, "limit": 10}


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def nodes_but_of_pauses(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All nodes but those that look for the pauses of one row, which are eight at most."""
    yield plan
    for child in plan.get("Plans", ()):
        in_subplan = child["Parent Relationship"] == "SubPlan"
        if not (in_subplan and any(node.get("Relation Name") == "queue_pauses" for node in nodes(child))):
            yield from nodes_but_of_pauses(child)


def scans(
    database_url: str, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
) -> dict[str, int]:
    """Each index or table that the statement scans for the leader, and how many rows of it were looked at.

    A partition's index goes by the name of the whole one.
    """
    with psycopg.connect(database_url) as connection:
        connection.execute("; ".join(SESSION).encode())
        return scans_of(connection, statement, parameters)


def explained(
    connection: psycopg.Connection,
    statement: str,
    parameters: Sequence[Any] | Mapping[str, Any],
    options: str = "",
) -> list[dict[str, Any]]:
    """The plan of a statement, which is rolled back if it is executed."""
    with connection.transaction(force_rollback=True):
        row = connection.execute(
            f"EXPLAIN ({options}FORMAT JSON) {statement}".encode(), parameters
        ).fetchone()
    assert row is not None
    plans: list[dict[str, Any]] = row[0]
    return plans


def cost_of(
    connection: psycopg.Connection, statement: str, parameters: Sequence[Any] | Mapping[str, Any]
) -> float:
    """The planner's estimate, by which a server decides whether to compile."""
    (explanation,) = explained(connection, statement, parameters)
    return float(explanation["Plan"]["Total Cost"])


def scans_of(
    connection: psycopg.Connection, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
) -> dict[str, int]:
    (explanation,) = explained(connection, statement, parameters, "ANALYZE, ")
    wholes: dict[str, str] = dict(connection.execute(WHOLE_INDEXES).fetchall())
    found: dict[str, int] = {}
    for node in nodes(explanation["Plan"]):
        name = node.get("Index Name") or (node["Node Type"] == "Seq Scan" and node["Relation Name"])
        if name:
            name = wholes.get(name, name)
            looked_at = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            found[name] = found.get(name, 0) + round(looked_at * node["Actual Loops"])
    return found


@pytest.fixture(params=["analyzed", "analyzed while it was empty", "truncated"])
def many_staged_rows(database_url: str, request: pytest.FixtureRequest) -> str:
    """20,000 rows for next year, 20 that have come due, 200 in each ready partition that are due at once."""
    if request.param == "analyzed while it was empty":
        query(database_url, "VACUUM ANALYZE")
    if request.param == "truncated":
        query(database_url, "TRUNCATE staged_jobs")
    insert = "INSERT INTO staged_jobs (job_name, scheduled_at) SELECT 'm.f', {} FROM generate_series(1, %s)"
    query(database_url, insert.format("now() + interval '1 year'"), MANY)
    query(database_url, insert.format("now() + interval '1 day'"), 20)
    query(
        database_url,
        "UPDATE staged_jobs SET scheduled_at = now() WHERE scheduled_at < now() + interval '2 days'",
    )
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, staged_at, scheduled_at) SELECT 'm.f', turn, turn "
        "FROM generate_series(now(), now() - interval '10 seconds', '-5 seconds') AS turn, generate_series(1, 200)",
    )
    if request.param == "analyzed":
        query(database_url, "ANALYZE")
    return database_url


@pytest.fixture
def many_inflight_rows(database_url: str) -> str:
    """20,000 delivered in two queues, 200 of them claimed, and 200 waiting to be tried again."""
    query(
        database_url,
        "INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, "
        "staged_at, delivery) SELECT id, 'm.f', '[]', '{}', CASE id %% 2 WHEN 0 THEN 'a' ELSE 'b' END, 0, "
        "now(), now(), id FROM generate_series(1, %s) AS ids (id)",
        MANY,
    )
    query(
        database_url,
        "UPDATE inflight_jobs SET lease_expires_at = now() + (id - 5) * interval '1 minute' WHERE id <= 200",
    )
    query(
        database_url,
        "UPDATE inflight_jobs SET next_run_at = now() + (id - 205) * interval '1 minute' WHERE id BETWEEN 201 AND 400",
    )
    query(database_url, "ANALYZE")
    return database_url


@pytest.fixture(params=["analyzed", "analyzed while it was empty"])
def many_waiting_rows(database_url: str, request: pytest.FixtureRequest) -> str:
    """20,000 that wait in two queues: in "a" they have failed, in "b" deferred themselves; and as many finished."""
    if request.param != "analyzed":
        query(database_url, "VACUUM ANALYZE")
    columns = "id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at"
    values = "id, 'm.f', '[]', '{}', CASE id %% 2 WHEN 0 THEN 'a' ELSE 'b' END, 0, now(), now()"
    query(
        database_url,
        f"INSERT INTO finished_jobs ({columns}, moved_at, claimed_at, finished_at, attempts, fencing_token) "
        f"SELECT {values}, now(), now(), now() - id * interval '1 s', 1, 1 FROM generate_series(1, %s) AS ids (id)",
        MANY,
    )
    query(
        database_url,
        f"INSERT INTO inflight_jobs ({columns}, delivery, next_run_at, failed_at) "
        f"SELECT {values}, id, now() + (id - 10) * interval '1 s', CASE id %% 2 WHEN 0 THEN now() END "
        "FROM generate_series(1, %s) AS ids (id)",
        MANY,
    )
    if request.param == "analyzed":
        query(database_url, "ANALYZE")
    return database_url


CLAIM: dict[str, Any] = {
    "worker": "test",
    "limits": Jsonb({}),
    "again": False,
    "delivery": None,
    "queue": None,
    "installation": None,
    "version": None,
    **Limits()._asdict(),
}
ERROR: dict[str, Any] = {"error": None, "reason": "failed", "explanation": "why", "ran": True}


OF_MANY = {
    "claim": claims.CLAIM_MANY,
    "left to claim": claims.LEFT_TO_CLAIM,
    "extend": leases.EXTEND_MANY,
    "release": leases.RELEASE,
    "finish": finishes.FINISH_MANY,
    "lasting": finishes.LASTING,
}
OF_ONE = {
    "claim one": claims.CLAIM,
    "claimed": claims.READ_CLAIM,
    "is current": leases.IS_CURRENT,
    "is finished": finishes.IS_FINISHED,
    "retry": outcomes.RETRY_LATER,
    "defer": outcomes.DEFER,
    "interrupt": outcomes.INTERRUPT,
    "bury": outcomes.BURY_CLAIMED,
    "bury what cannot be claimed": outcomes.BURY_UNCLAIMABLE,
}
# Tables of one row or two.
SMALL = {"drain_state", "drain_state_pkey", "drain_schema", "drain_schema_pkey"}
# What a server with JIT compiles; a node that was switched off and is used all the same costs 100,000 times as much.
COMPILED_ABOVE_COST = 100_000


def sessions(database_url: str) -> dict[str, Callable[[], psycopg.Connection]]:
    return {
        "of a worker": lambda: postgres.connect(database_url, "test", settings=database.session()),
        # As through a pooler.
        "without settings": lambda: psycopg.connect(database_url, prepare_threshold=None),
    }


def parameters_of(name: str, ids: Sequence[int]) -> Sequence[Any] | Mapping[str, Any]:
    return (
        CLAIM
        | ERROR
        | {
            "id": ids[0],
            "ids": id_array(ids),
            "deliveries": id_array(ids),
            "token": 0,
            "tokens": id_array([0] * len(ids)),
            "salt": 0,
            "salts": id_array([0] * len(ids)),
            "leases": Jsonb({}),
            "wait": 1,
            "most": 20,
            "until": None,
            "error": "{}",
            "alone": False,
            "same_lease": True,
        }
    )


def take_inflight_jobs_for_empty(database_url: str) -> None:
    """As after a vacuum that saw no row that lives, and could remove none of the dead ones."""
    query(database_url, "VACUUM ANALYZE inflight_jobs")
    query(database_url, r"UPDATE pg_class SET reltuples = 0 WHERE relname LIKE 'inflight\_jobs%'")


@pytest.mark.parametrize("kind", ["of a worker", "without settings"])
@pytest.mark.parametrize("taken_for", ["what it is", "empty"])
def test_worker_statements_use_the_id_index_under_any_statistics(
    many_inflight_rows: str, taken_for: str, kind: str
) -> None:
    query(many_inflight_rows, "UPDATE inflight_jobs SET claimed_at = now()")
    if taken_for == "empty":
        take_inflight_jobs_for_empty(many_inflight_rows)
    ids = [*range(1, 101), *range(4_000_000, 4_000_100)]
    with closing(sessions(many_inflight_rows)[kind]()) as connection:
        for name, statement in (OF_MANY | OF_ONE).items():
            parameters = parameters_of(name, ids)
            found = scans_of(connection, statement, parameters)
            others = {each for each, rows in found.items() if rows and not each.endswith("_pkey")} - SMALL

            assert not others, name
            assert sum(found.values()) <= (2 * len(ids) if name in OF_MANY else 8), name
            assert cost_of(connection, statement, parameters) < COMPILED_ABOVE_COST, name


def test_ids_and_tokens_are_not_joined_by_a_nested_loop(many_inflight_rows: str) -> None:
    take_inflight_jobs_for_empty(many_inflight_rows)
    with closing(sessions(many_inflight_rows)["without settings"]()) as connection:
        for name, statement in OF_MANY.items():
            (plan,) = explained(connection, statement, parameters_of(name, range(1, 201)))

            joined = nodes_but_of_pauses(plan["Plan"])
            assert not [node for node in joined if node["Node Type"] == "Nested Loop"], name


def test_a_finish_planned_on_an_empty_table_still_reads_one_row(
    database_url: str,
) -> None:
    def claimed(jobs: int) -> list[Claim]:
        ids = stage_jobs(database_url, jobs)
        staged.move(connection, ids, last_delivery=0)
        return claims.claim_many(connection, deliveries(connection, ids), worker="somebody", limits={})

    def finish(held: list[Claim]) -> None:
        for claim in held:
            assert finishes.finish_and_commit(of_jobs, claim)

    # What a session has read is known when it has ended.
    with (
        closing(sessions(database_url)["of a worker"]()) as connection,
        closing(connect(database_url)) as of_jobs,
    ):
        finish(claimed(10))
        connection.execute("VACUUM inflight_jobs")
        # The sixth execution of a prepared statement makes the plan that is kept.
        finish(claimed(10))
        finish(claimed(MANY)[-10:])
        pid = of_jobs.info.backend_pid
    assert wait_until(
        lambda: query(
            database_url, "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", pid
        ),
        PATIENCE_SECONDS,
    )
    ((read,),) = query(
        database_url, "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'inflight_jobs'"
    )
    assert read < MANY


def test_finding_failing_queues_takes_a_few_index_reads_each(many_waiting_rows: str) -> None:
    with psycopg.connect(many_waiting_rows) as connection:
        failing = [(found.queue, found.due, found.failing) for found in waiting.retrying_queues(connection)]
    assert failing == [("a", True, True), ("b", True, False)]

    found = scans(many_waiting_rows, waiting._RETRYING_QUEUES, {"failures": waiting.FAILURES_IN_A_ROW})

    assert set(found) <= {"inflight_jobs_waiting", "inflight_jobs_failed", "finished_jobs_latest"}
    assert sum(found.values()) <= 20


def test_the_retry_of_a_failing_queue_is_read_first_from_its_index(many_waiting_rows: str) -> None:
    one = REDELIVER | {"queue": "a", "limit": 1}
    found = scans(many_waiting_rows, redeliveries.REDELIVER_RETRIES, one)

    assert set(found) == {"inflight_jobs_waiting", "inflight_jobs_pkey"}
    assert sum(found.values()) <= 4


def test_a_batch_reads_only_its_own_rows_and_no_scheduled_ones(many_staged_rows: str) -> None:
    found = scans(many_staged_rows, lanes.READ_DUE, WHOLE_LANE | {"limits": "{100}", "leave": "{}"})

    # One more of each partition, to know which of them comes first.
    assert set(found) == {"staged_jobs_in_lanes"}
    assert 100 <= found["staged_jobs_in_lanes"] <= 102


def test_a_batch_starts_after_the_last_row_taken(many_staged_rows: str) -> None:
    (id_,) = query(many_staged_rows, "SELECT id FROM staged_jobs_ready ORDER BY id OFFSET 299 LIMIT 1")[0]
    behind = WHOLE_LANE | {"priorities": "{0}", "ids": f"{{{id_}}}", "limits": "{1000}", "leave": "{}"}
    found = scans(many_staged_rows, lanes.READ_DUE, behind)

    assert found == {"staged_jobs_in_lanes": 300}


def test_lanes_are_found_without_reading_rows_of_known_ones(many_staged_rows: str) -> None:
    found = scans(
        many_staged_rows, lanes.FIND_LANES, {"kinds": "{0}", "lows": '{""}', "highs": '{"~"}', "most": 1000}
    )
    assert set(found) == {"staged_jobs_in_lanes"}
    assert sum(found.values()) <= 3

    around = {"kinds": "{0,0}", "lows": '{"","default"}', "highs": '{"default","~"}', "most": 1000}
    assert sum(scans(many_staged_rows, lanes.FIND_LANES, around).values()) == 0


def test_a_search_reads_the_first_rows_of_a_lane_and_no_others(many_staged_rows: str) -> None:
    all_lanes = {"kinds": "{0}", "lows": '{""}', "highs": '{"~"}', "most": 1000}
    found = scans(many_staged_rows, lanes.SEARCH, all_lanes)
    assert set(found) == {"staged_jobs_in_lanes", "staged_jobs_coming_due"}
    # One more of each partition, to know which of them comes first; and those that find the lanes.
    assert lanes.FIRST_ROWS <= found["staged_jobs_in_lanes"] <= lanes.FIRST_ROWS + 6


def test_counting_a_queue_reads_no_row_of_another(many_staged_rows: str) -> None:
    nobody: dict[str, Any] = {"queue": "nobody", "priority": 0, "id": 10**12, "up_to": 1000}
    lane = {"kinds": "{0}", "queues": "{nobody}"}
    for statement in (lanes.COUNT_DUE, waiting_by_cause._GROUPS, places._IN_QUEUE):
        assert sum(scans(many_staged_rows, statement, nobody | lane).values()) == 0

    found = scans(many_staged_rows, lanes.COUNT_DUE, {**nobody, **lane, "queues": "{default}", "up_to": 100})
    assert set(found) == {"staged_jobs_in_lanes"}
    assert sum(found.values()) <= 110


def test_jobs_coming_due_are_found_without_reading_others(many_staged_rows: str) -> None:
    found = scans(many_staged_rows, staged.MATURE, (1000,))

    assert found["staged_jobs_coming_due"] == 20
    assert sum(found.values()) <= 100


def test_a_move_finds_its_rows_by_their_ids(many_staged_rows: str) -> None:
    rows = query(many_staged_rows, "SELECT id FROM staged_jobs_ready ORDER BY id DESC LIMIT 50")
    found = scans(many_staged_rows, staged.MOVE, MOVED_NUMBERS | {"ids": id_array(id_ for (id_,) in rows)})

    assert set(found) == {f"staged_jobs_ready_{turn}_pkey" for turn in range(3)}
    assert sum(found.values()) == 50


def test_a_plan_made_on_an_empty_partition_still_works_on_a_full_one(database_url: str) -> None:
    query(database_url, "VACUUM ANALYZE staged_jobs")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("; ".join((*SESSION, "SET plan_cache_mode = force_generic_plan")).encode())
        connection.execute(staged.MOVE.encode(), MOVED_NUMBERS | {"ids": "{}"}, prepare=True)
        ids = stage_jobs(database_url, 1000)
        connection.execute("BEGIN")
        found = scans_of(connection, f"EXECUTE _pg3_0('{id_array(ids[:50])}', 0, 0, 0)")

    assert set(found) == {f"staged_jobs_ready_{turn}_pkey" for turn in range(3)}
    assert sum(found.values()) == 50


def test_the_next_scheduled_row_is_the_first_of_its_index(many_staged_rows: str) -> None:
    assert scans(many_staged_rows, waiting.NEXT_SCHEDULED, (0.1,)) == {"staged_jobs_coming_due": 2}


def test_the_lag_reads_about_a_hundred_rows_per_priority(many_staged_rows: str) -> None:
    found = scans(many_staged_rows, lanes.OLDEST_DUE, WHOLE_LANE)

    assert set(found) == {"staged_jobs_in_lanes"}
    assert sum(found.values()) <= 110


def test_the_oldest_deliveries_take_one_index_read_per_queue(many_inflight_rows: str) -> None:
    found = scans(many_inflight_rows, waiting._OLDEST_DELIVERIES, {"after": "", "limit": None})

    assert found["inflight_jobs_delivered"] <= 2
    assert set(found) == {"inflight_jobs_delivered"}


def test_expired_leases_are_found_without_reading_others(many_inflight_rows: str) -> None:
    found = scans(
        many_inflight_rows,
        redeliveries.REDELIVER_LEASES,
        REDELIVER | {"within": redeliveries.CENTURY_SECONDS, "but": ["ruled"]},
    )

    assert found["inflight_jobs_claimed"] <= 10
    assert set(found) == {"inflight_jobs_claimed", "inflight_jobs_pkey"}


def test_leases_expired_long_ago_are_not_read_each_time(many_inflight_rows: str) -> None:
    found = scans(many_inflight_rows, redeliveries.REDELIVER_LEASES, REDELIVER | {"within": 150.0, "but": []})

    assert found["inflight_jobs_claimed"] == 3


def test_the_oldest_deliveries_are_searched_from_a_given_number(many_inflight_rows: str) -> None:
    bounds = (["a", "b"], [1000, 2001])
    found = scans(many_inflight_rows, waiting._OLDEST_DELIVERIES_FROM, bounds)

    assert found == {"inflight_jobs_delivered": 2}


def test_due_retries_are_found_without_reading_others(many_inflight_rows: str) -> None:
    found = scans(many_inflight_rows, redeliveries.REDELIVER_RETRIES, REDELIVER | {"queue": "a"})

    assert found["inflight_jobs_waiting"] <= 10
    assert set(found) == {"inflight_jobs_waiting", "inflight_jobs_pkey"}


def test_lost_deliveries_are_found_without_reading_others(many_inflight_rows: str) -> None:
    lost = REDELIVER | {"queue": "a", "above": 0, "up_to": 500}
    found = scans(many_inflight_rows, redeliveries.REDELIVER_UNCLAIMED, lost)

    assert found["inflight_jobs_delivered"] <= 10
    assert set(found) == {"inflight_jobs_delivered", "inflight_jobs_pkey"}


@pytest.fixture(params=["analyzed", "never analyzed"])
def many_pauses(many_inflight_rows: str, request: pytest.FixtureRequest) -> str:
    """5,000 paused keys, of which the rows in flight have ten, beside those 20,000 rows."""
    query(
        many_inflight_rows,
        "INSERT INTO queue_pauses (queue, key) SELECT CASE n %% 2 WHEN 0 THEN 'a' ELSE 'b' END, 'key ' || n "
        "FROM generate_series(1, %s) AS numbers (n)",
        5000,
    )
    query(many_inflight_rows, "UPDATE inflight_jobs SET key = 'key ' || id WHERE id % 1000 = 0")
    query(many_inflight_rows, "VACUUM inflight_jobs")
    if request.param == "analyzed":
        query(many_inflight_rows, "ANALYZE queue_pauses")
    return many_inflight_rows


def test_pauses_are_looked_up_by_index_for_each_row(many_pauses: str) -> None:
    century: dict[str, Any] = {"within": redeliveries.CENTURY_SECONDS, "but": [], "queues": []}
    statements: dict[str, dict[str, Any]] = {
        redeliveries.REDELIVER_RETRIES_BUT_PAUSED: {"queue": "a"},
        redeliveries.REDELIVER_LEASES_BUT_PAUSED: century,
        redeliveries.REDELIVER_UNCLAIMED_BUT_PAUSED: {"queue": "a", "above": 0, "up_to": 500},
        redeliveries.CALL_BACK_LEASES: century,
    }
    for statement, more in statements.items():
        found = scans(many_pauses, statement, REDELIVER | more)

        assert {"inflight_jobs", "queue_pauses"}.isdisjoint(found), statement
        assert sum(found.values()) <= 60, statement

    for statement in (redeliveries.CALL_BACK, redeliveries.CALL_BACK_OF_QUEUES, redeliveries.CALL_BACK_ALL):
        found = scans(many_pauses, statement, {"limit": 1000, "queues": ["a"], "up_to": 500})

        assert {"inflight_jobs", "queue_pauses"}.isdisjoint(found), statement


UNIQUE_KEYS: dict[str, tuple[str, Any]] = {
    "candidates": (
        unique.READ_CANDIDATES,
        {"job_names": ["m.f"] * 3, "unique_keys": ["1", "2", "3"], "most": 10},
    ),
    "supersede staged": (unique.SUPERSEDE_STAGED, {"ids": id_array([1, 2]), "stand": id_array([3, 3])}),
    "supersede in flight": (unique.SUPERSEDE_IN_FLIGHT, {"ids": id_array([1, 2]), "stand": id_array([3, 3])}),
    "fence": (unique.FENCE, [id_array([1, 2])]),
    "postpone": (unique.POSTPONE, {"ids": id_array([1, 2]), "seconds": [1.0, 1.0]}),
}


@pytest.mark.parametrize("analyzed", ["full", "empty"])
def test_unique_keys_are_resolved_by_index_among_many_waiting_jobs(database_url: str, analyzed: str) -> None:
    if analyzed == "empty":
        query(database_url, "VACUUM ANALYZE")
    columns = "job_name, unique_key, scheduled_at, staged_at"
    values = "'m.f', id::text, now() + (id %% 2) * interval '1 day', now()"
    ids = "FROM generate_series(1, %s) AS ids (id)"
    query(
        database_url,
        f"INSERT INTO staged_jobs (id, {columns}) OVERRIDING SYSTEM VALUE SELECT id, {values} {ids}",
        MANY,
    )
    query(
        database_url,
        f"INSERT INTO inflight_jobs (id, {columns}, job_args, job_kwargs, queue, priority, delivery) "
        f"SELECT id + 1000000, {values}, '[]', '{{}}', 'default', 0, id {ids}",
        MANY,
    )
    if analyzed == "full":
        query(database_url, "ANALYZE")
    for name, (statement, parameters) in UNIQUE_KEYS.items():
        scanned = scans(database_url, statement, parameters)
        assert max(scanned.values(), default=0) <= 20, (name, scanned)


def test_the_numbers_of_the_page_read_a_bounded_part_of_each_table(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, queue, priority) "
        "SELECT 'm.f', 'queue' || mod(number, 3), mod(number, 2) FROM generate_series(1, %s) AS number",
        MANY,
    )
    query(
        database_url,
        "INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "moved_at, claimed_at, finished_at, attempts, fencing_token) "
        "SELECT number, 'm.f', '[]', '{}', 'queue' || mod(number, 3), 0, now(), now(), now(), now(), now(), 1, 1 "
        "FROM generate_series(1, %s) AS number",
        MANY,
    )
    monkeypatch.setattr(states, "PAGES", 20)
    with psycopg.connect(database_url) as connection:
        connection.execute("SET jit = off; SET enable_seqscan = off")
        ready = states.count(connection)["ready"]
        assert not ready.are_exact
        assert 0.5 * MANY < sum(ready.by_queue.values()) < 2 * MANY
        day = {"day": datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)}
        assert sum(scans_of(connection, queue_overview._FINISHING, day).values()) < 20
        step = {
            "queues": ["queue1"],
            "begins": [datetime.now(UTC) - timedelta(hours=1)],
            "length": timedelta(hours=1),
        }
        # EXPLAIN rounds the rows of a loop, and the hour decides how many loops read a day's partition.
        most = queue_overview.PART_UP_TO + queue_overview.PARTS
        assert sum(scans_of(connection, queue_overview._FINISHED, step).values()) <= most
        of_keys = {"keys": ["acme"], "queue": "queue1", "up_to": 10}
        assert sum(scans_of(connection, queue_overview._OF_KEYS, of_keys).values()) < 10
        of_queue = {"queue": "queue1", "up_to": 10}
        assert sum(scans_of(connection, queue_overview._OF_A_QUEUE, of_queue).values()) <= 60
        oldest = scans_of(connection, lanes.OLDEST_AT_A_GLANCE, {**WHOLE_LANE, "queues": '{"queue1"}'})
        assert sum(oldest.values()) < 20


@pytest.mark.parametrize("analyzed", ["never", "while empty", "now"])
def test_results_of_predecessors_are_read_by_index(database_url: str, analyzed: str) -> None:
    if analyzed == "while empty":
        query(database_url, "VACUUM ANALYZE finished_jobs, job_edges")
    columns = "job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at, claimed_at"
    query(
        database_url,
        f"INSERT INTO finished_jobs (id, {columns}, fencing_token, finished_at, attempts, result) "
        "SELECT id, 'm.f', '[]', '{}', 'default', 0, now(), now(), now(), now(), 1, now(), 1, '1' "
        "FROM generate_series(1, %s) AS id",
        MANY,
    )
    query(
        database_url,
        "INSERT INTO job_edges (child_id, parent_id, awaited_id, state) "
        "SELECT 1000000 + id / 3, id, id, 'met' FROM generate_series(1, %s) AS id",
        MANY,
    )
    if analyzed == "now":
        query(database_url, "VACUUM ANALYZE finished_jobs, job_edges")
    with psycopg.connect(database_url) as connection:
        assert len(predecessors.read_results(connection, 1_000_010)) == 3
        found = scans_of(connection, predecessors.READ_RESULTS, {"id": 1_000_010})
    assert sum(found.values()) <= 12, found


@pytest.mark.parametrize("analyzed", ["never", "while empty", "now"])
def test_the_flow_of_a_job_is_read_by_index(database_url: str, analyzed: str) -> None:
    flow, member, callback = 1_000_000, 1_000_010, 3_000_000
    if analyzed == "while empty":
        query(database_url, "VACUUM ANALYZE job_edges, flows")
    query(
        database_url,
        "INSERT INTO job_edges (child_id, parent_id, awaited_id, on_failure, node) "
        "SELECT %s, id, id, 'hold', 'n' || id FROM generate_series(%s, %s) AS id",
        *(flow, flow + 1, flow + MANY),
    )
    query(
        database_url,
        "INSERT INTO job_edges (child_id, parent_id, awaited_id) VALUES (%s, %s, %s), (%s, %s, %s)",
        *(callback, flow, flow, member, member - 1, member - 1),
    )
    query(
        database_url,
        "INSERT INTO flows (id, on_success, staged_by) SELECT id, id + 2000000, 'a' FROM generate_series(%s, %s) AS id",
        *(flow - MANY, flow),
    )
    if analyzed == "now":
        query(database_url, "VACUUM ANALYZE job_edges, flows")
    with psycopg.connect(database_url) as connection:
        assert predecessors.read_flow(connection, member) == (flow, f"n{member}")
        assert predecessors.read_flow(connection, callback) == (flow, None)
        assert predecessors.read_flow(connection, 2_000_000) is None
        for job_id, most in ((member, 3), (callback, 6), (2_000_000, 3)):
            found = scans_of(connection, predecessors.READ_FLOW, {"id": job_id})
            assert sum(found.values()) <= most, (job_id, found)
        found = scans_of(connection, predecessors.READ_RESULTS, {"id": member})
    assert sum(found.values()) <= 6, found

"""Each role does its whole work with the rights that `drain roles` gives it, and nothing else."""

from __future__ import annotations

import math
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg.types.json import Jsonb
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from drain import emit, metrics, result as result_of, schedule, stage, stage_many, state as state_of, workers
from drain.__main__ import main
from drain.admission.keyed_queue import RuledQueue
from drain.admission.rules import Rate, Rules
from drain.audit import audit
from drain.config import Settings
from drain.database import postgres, roles, schema
from drain.database.grants import DEFAULT_NAMES
from drain.database.roles import Installation
from drain.embedded import EmbeddedPostgres, Services
from drain.enqueuer.daemon import Daemon
from drain.enqueuer.gauges import Gauges
from drain.enqueuer.housekeeping import PastFlows
from drain.enqueuer.objectives import FlowObjectives
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.ticker import Ticker
from drain.enqueuer.unblocker import Unblocker
from drain.enqueuer.waits import Waits
from drain.errors import ConfigError
from drain.jobs import registry
from drain.read import queries, system
from drain.tables import (
    bulk,
    claims,
    crons,
    dead,
    finished,
    finishes,
    lanes,
    leases,
    running,
    staged,
    steps,
    waits,
)
from drain.tables.dead import Selection
from drain.wire import Producer
from drain.workers.context.connection_cache import close_all
from drain.workers.entry import Worker
from drain.workers.errors import Dead, Defer, RateLimited
from tests import jobs_with_undo
from tests.helpers import NAMESPACE, deliveries, ids_in, new_enqueuer, pushed_jobs, query, wait_until
from tests.hostility import NAMES, OWNER, Place
from tests.inprocess_worker import NAME, Workshop, leave

NOW = datetime.now(UTC)
# Which of our functions a role may call; one that nobody has thought of may be called by none of them.
MAY_CALL = {
    "enqueuer": {"drain_make_days", "drain_drop_old_day", "drain_truncate_if_empty"},
    "application": {
        *("drain_stage_once", "drain_stage", "drain_stage_of", "drain_job_state", "drain_after"),
        "drain_emit",
        *("drain_flow", "drain_join", "drain_callback", "drain_flow_progress", "drain_node"),
    },
    "worker": {"drain_finish", "drain_record_step", "drain_record_undoable_step", "drain_record_undo"},
    "operator": set[str](),
    "inspection": {"drain_job_state", "drain_flow_progress"},
}
TABLES = (
    "staged_jobs",
    "inflight_jobs",
    "finished_jobs",
    "dead_jobs",
    "stale_finishes",
    "drain_state",
    "bulk_runs",
    "queues",
    "queue_pauses",
    "crons",
    "idempotency_keys",
    "job_edges",
    "flows",
    "job_waits",
    "job_events",
)
MAY_NOT = {
    "application": [
        "INSERT INTO staged_jobs (id, job_name) OVERRIDING SYSTEM VALUE VALUES (1, 'm.f')",
        "INSERT INTO staged_jobs (job_name, fencing_token) VALUES ('m.f', 9223372036854775807)",
        "INSERT INTO staged_jobs (job_name, staged_at) VALUES ('m.f', '2000-01-01')",
        "INSERT INTO staged_jobs (job_name, matured_at) VALUES ('m.f', now())",
        "INSERT INTO staged_jobs (job_name, history) VALUES ('m.f', '[]')",
        "INSERT INTO staged_jobs (job_name, salt) VALUES ('m.f', 1)",
        "INSERT INTO staged_jobs (job_name, staged_by) VALUES ('m.f', 'test_worker')",
        "COPY staged_jobs (job_name, staged_by) FROM STDIN",
        "SET role = test_worker",
        "INSERT INTO staged_jobs (job_name) VALUES ('m.f') RETURNING job_args",
        "INSERT INTO staged_jobs_ready (job_name) VALUES ('m.f')",
        "INSERT INTO staged_jobs_ready_0 (job_name) VALUES ('m.f')",
        "COPY staged_jobs (id, job_name) FROM STDIN",
        "COPY staged_jobs TO STDOUT",
        "SELECT job_args FROM staged_jobs",
        "SELECT FROM staged_jobs WHERE job_name = 'm.f'",
        "SELECT id FROM staged_jobs FOR UPDATE",
        "SELECT id FROM staged_jobs_ready_0",
        "UPDATE staged_jobs SET queue = 'x'",
        "DELETE FROM staged_jobs",
        "LOCK TABLE staged_jobs IN ACCESS EXCLUSIVE MODE",
        "SELECT FROM idempotency_keys",
        "INSERT INTO idempotency_keys (idempotency_key, job_name, digest, expires_at) VALUES ('a', 'm.f', '', now())",
        "UPDATE idempotency_keys SET job_id = 1",
        "DELETE FROM idempotency_keys",
        "SELECT nextval('staged_jobs_id_seq')",
        "SELECT last_value FROM drain_last_delivery",
        *(f"SELECT FROM {table}" for table in TABLES[1:]),
        "INSERT INTO inflight_jobs (id, job_name) VALUES (1, 'm.f')",
        "INSERT INTO job_edges (child_id, parent_id, awaited_id) VALUES (2, 1, 1)",
        "UPDATE job_edges SET state = 'met'",
        "DELETE FROM job_edges",
        "INSERT INTO flows (id, staged_by) VALUES (1, 'test_worker')",
        "INSERT INTO job_events (name, payload, emitted_by) VALUES ('a', '1', 'test_worker')",
        "DELETE FROM job_waits",
    ],
    "enqueuer": [
        "SELECT description FROM flows",
        "UPDATE flows SET on_dead = 1",
        "INSERT INTO job_events (name, payload, emitted_by) VALUES ('a', '1', 'me')",
        "INSERT INTO job_waits (job_id, name, event, fencing_token) VALUES (1, 'a', 'a', 1)",
        "UPDATE job_waits SET event = 'a'",
        "UPDATE job_steps SET result = '1'",
        "SELECT result FROM job_steps",
        "INSERT INTO staged_jobs (job_name, history) VALUES ('m.f', '[]')",
        "INSERT INTO crons (name, job_name, cron) VALUES ('n', 'm.f', '* * * * *')",
        "UPDATE crons SET job_name = 'm.g'",
        "DELETE FROM crons",
        "UPDATE staged_jobs SET job_args = '[1]'",
        "UPDATE staged_jobs SET fencing_token = 0",
        "UPDATE inflight_jobs SET attempts = 0",
        "SELECT job_args FROM finished_jobs",
        "INSERT INTO finished_jobs SELECT * FROM finished_jobs",
        "DELETE FROM finished_jobs",
        "SELECT job_args FROM dead_jobs",
        "DELETE FROM dead_jobs",
        "UPDATE drain_state SET installation = gen_random_uuid()",
        "DELETE FROM drain_state",
        "SELECT digest FROM idempotency_keys",
        "UPDATE idempotency_keys SET job_id = 1",
        "INSERT INTO job_edges (child_id, parent_id, awaited_id) VALUES (2, 1, 1)",
        "UPDATE job_edges SET parent_id = 1",
        "UPDATE job_edges SET parent_id = 1",
        "UPDATE staged_jobs SET starts_at = now()",
        "TRUNCATE inflight_jobs",
        "TRUNCATE staged_jobs_scheduled",
        "UPDATE drain_schema SET version = 0",
        "UPDATE queues SET running = 1",
        "INSERT INTO queue_pauses (queue) VALUES ('a')",
    ],
    "worker": [
        "INSERT INTO staged_jobs (job_name) VALUES ('m.f')",
        "SELECT job_args FROM staged_jobs",
        "DELETE FROM staged_jobs",
        "INSERT INTO crons (name, job_name, cron, job_args) VALUES ('n', 'm.f', '* * * * *', '[1]')",
        "UPDATE crons SET job_args = '[1]'",
        "SELECT job_args FROM crons",
        "DELETE FROM crons",
        "INSERT INTO inflight_jobs SELECT * FROM inflight_jobs",
        "UPDATE inflight_jobs SET job_args = '[1]'",
        "UPDATE inflight_jobs SET delivery = 1",
        "SELECT job_args FROM finished_jobs",
        "UPDATE finished_jobs SET finished_at = now()",
        "DELETE FROM finished_jobs",
        "SELECT job_args FROM dead_jobs",
        "DELETE FROM dead_jobs",
        "SELECT changed_xid FROM job_edges",
        "SELECT FROM job_events",
        "INSERT INTO job_events (name, payload, emitted_by) VALUES ('a', '1', 'me')",
        "DELETE FROM job_waits",
        "UPDATE job_edges SET state = 'met'",
        "DELETE FROM job_edges",
        "INSERT INTO job_steps (job_id, name, result, seconds, fencing_token, undo) VALUES (1, 'a', '1', 1, 1, '{}')",
        "DELETE FROM job_steps",
        "DELETE FROM stale_finishes",
        "UPDATE drain_state SET leader = 'me'",
        "SELECT setval('drain_last_delivery', 1)",
        "UPDATE queues SET running = 1",
        "SELECT running FROM queues",
        "UPDATE queues SET rate = NULL",
        "DELETE FROM queue_pauses",
        "SELECT paused_at FROM queue_pauses",
        "UPDATE queue_pauses SET queue = 'b'",
    ],
    "operator": [
        "INSERT INTO staged_jobs (id, job_name) OVERRIDING SYSTEM VALUE VALUES (1, 'm.f')",
        "UPDATE staged_jobs SET job_args = '[1]'",
        "UPDATE staged_jobs SET job_name = 'x'",
        "UPDATE inflight_jobs SET fencing_token = 9",
        "UPDATE inflight_jobs SET job_args = '[1]'",
        "DELETE FROM dead_jobs",
        "SELECT job_args FROM dead_jobs",
        "SELECT job_args FROM finished_jobs",
        "DELETE FROM finished_jobs",
        "SELECT FROM job_events",
        "UPDATE job_waits SET event = 'a'",
        "SELECT FROM job_edges",
        "UPDATE job_edges SET state = 'met'",
        "DELETE FROM job_edges",
        "UPDATE drain_state SET leader = 'me'",
        "UPDATE queue_pauses SET queue = 'b'",
    ],
    "inspection": [
        "INSERT INTO staged_jobs (job_name) VALUES ('m.f')",
        "SELECT id FROM staged_jobs FOR UPDATE",
        "LOCK TABLE staged_jobs IN ROW EXCLUSIVE MODE",
        "SELECT setval('drain_last_delivery', 1)",
        "SELECT nextval('staged_jobs_id_seq')",
        "INSERT INTO inflight_jobs SELECT * FROM inflight_jobs",
        "INSERT INTO finished_jobs SELECT * FROM finished_jobs",
        "INSERT INTO dead_jobs SELECT * FROM dead_jobs",
        "UPDATE inflight_jobs SET attempts = 0",
        *(f"DELETE FROM {table}" for table in TABLES),
    ],
}
NOBODY_MAY = [
    *(f"TRUNCATE {table}" for table in TABLES),
    *(f"DROP TABLE {table}" for table in TABLES),
    "ALTER TABLE staged_jobs DISABLE TRIGGER ALL",
    "CREATE TRIGGER mine BEFORE INSERT ON staged_jobs EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE TABLE mine (id bigint REFERENCES drain_schema)",
    "CREATE TABLE mine (id bigint)",
    "CREATE FUNCTION mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION drain_finish(job bigint, token bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    f"SET ROLE {OWNER}",
]


@pytest.mark.parametrize("role", MAY_NOT)
def test_a_role_may_do_nothing_else(place: Place, role: str) -> None:
    assert [each for each in (*MAY_NOT[role], *NOBODY_MAY) if not place.refuses(role, each)] == []
    if role != "enqueuer":
        assert place.refuses(role, "TRUNCATE staged_jobs_ready_0")


@pytest.mark.parametrize("role", [*MAY_CALL, "mallory"])
def test_a_role_may_call_only_the_functions_it_needs(place: Place, role: str) -> None:
    callable_by = query(
        place.url,
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace "
        "AND has_function_privilege(%s, oid, 'EXECUTE')",
        f"test_{role}",
    )
    assert {name for (name,) in callable_by} == MAY_CALL.get(role, set())


def test_an_application_stages_in_every_supported_way(place: Place) -> None:
    url = place.url_of("application")
    options: dict[str, Any] = {
        "priority": 1,
        "run_at": NOW,
        "expires_at": NOW,
        "tag": "t",
        "max_attempts": 1,
        "timeout_seconds": 1,
        "key": "k",
        "unique_key": "u",
        "keep": "last",
        "quiet": timedelta(seconds=1),
    }
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO staged_jobs (job_name, job_args) VALUES ('m.f', '[42]')")
        stage(connection, "m.f", [1], {"a": 1}, queue="mail", context={"trace": "x"}, **options)
        stage_many(connection, "m.f", [(1,), (2,)])
        once = [stage(connection, "m.f", [1], **options, idempotency_key="once") for _ in range(2)]
        assert once[0] == once[1]
        with connection.cursor().copy("COPY staged_jobs (job_name, job_args) FROM STDIN") as copy:
            copy.write_row(("m.f", "[7]"))
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, session.begin():
        stage(session, "m.f", run_at=NOW + timedelta(days=1))
    engine.dispose()
    query(url, "SELECT drain_stage('m.f', '[1]', '{\"queue\": \"mail\"}')")
    query(url, "SELECT drain_stage('m.f', '[1]', '{\"idempotency_key\": \"in SQL\"}')")
    assert len(ids_in(place.url, "staged_jobs")) == 9


def test_an_application_lets_jobs_wait_for_others(place: Place) -> None:
    after = "SELECT drain_stage('m.f', '[]', %s)"
    with place.connected("application") as application:
        (first, second) = stage_many(application, "m.f", [(1,), (2,)])
        for options in (
            {"after": [first, [second, "run"]], "on_failure": "hold"},
            {"after": [first], "idempotency_key": "once"},
            {"after": [first], "run_in": 60},
        ):
            application.execute(after, [Jsonb(options)])
        with application.transaction():
            stage_blocked = (
                "INSERT INTO staged_jobs (job_name, scheduled_at, starts_at) "
                "VALUES ('m.f', '9999-12-29Z', now()) RETURNING id"
            )
            (blocked,) = postgres.fetch_one(application, stage_blocked)
            application.execute(
                "SELECT drain_after(%s, %s, %s)", [[blocked] * 2, [first, second], ["run", "cancel"]]
            )
            assert getattr(state_of(application, blocked), "state", None) == "blocked"
    assert query(
        place.url,
        "SELECT array_agg(on_failure ORDER BY parent_id) FROM job_edges GROUP BY child_id ORDER BY child_id",
    ) == [(["hold", "run"],), (["cancel"],), (["cancel"],), (["run", "cancel"],)]
    assert query(place.url, "SELECT DISTINCT state, awaited_id = parent_id FROM job_edges") == [
        ("waiting", True)
    ]


def test_an_enqueuer_changes_edges_and_a_worker_reads_results_of_predecessors(place: Place) -> None:
    with place.connected("application") as application:
        (parent,) = stage_many(application, "m.f", [(1,)])
        application.execute("SELECT drain_stage('m.f', '[]', %s)", [Jsonb({"after": [parent]})])
    with place.connected("enqueuer") as leader:
        staged.move(leader, [parent], 0)
    with place.connected("worker") as worker:
        claim = claims.claim(worker, parent, worker="w", limits={})
        assert claim is not None
        assert finishes.finish(worker, claim)
        worker.execute("UPDATE finished_jobs SET result = '42' WHERE id = %s", [parent])
    ended = (
        "SELECT edge.child_id, done.finished_xid IS NOT NULL, dead.died_xid "
        "FROM job_edges AS edge LEFT JOIN finished_jobs AS done ON done.id = edge.awaited_id "
        "LEFT JOIN dead_jobs AS dead ON dead.id = edge.awaited_id WHERE edge.state = 'waiting'"
    )
    changed = (
        "UPDATE job_edges SET state = 'met', awaited_id = awaited_id, changed_xid = pg_current_xact_id()"
    )
    results = (
        "SELECT edge.awaited_id, done.result FROM job_edges AS edge "
        "JOIN finished_jobs AS done ON done.id = edge.awaited_id WHERE edge.child_id = %s AND edge.state = 'met'"
    )
    with place.connected("enqueuer") as leader:
        found = leader.execute(ended).fetchall()
        assert found == [(found[0][0], True, None)]
        assert leader.execute(changed).rowcount == 1
        unblocked = "UPDATE staged_jobs SET scheduled_at = now(), matured_at = now() WHERE id = %s"
        assert leader.execute(unblocked, [found[0][0]]).rowcount == 1
    with place.connected("worker") as worker:
        assert worker.execute(results, [found[0][0]]).fetchall() == [(parent, 42)]
    with place.connected("enqueuer") as leader:
        assert leader.execute("DELETE FROM job_edges").rowcount == 1


def test_an_application_makes_flows_and_an_enqueuer_ends_them(place: Place) -> None:
    count = "SELECT * FROM drain_flow_progress(%s)"
    with place.connected("application") as application:
        with application.transaction():
            ((flow,),) = application.execute('SELECT id FROM drain_flow(\'{"name": "a"}\')').fetchall()
            for event in ("success", "complete", "dead"):
                given = Jsonb({"flow": flow, "on": event})
                application.execute("SELECT drain_stage('m.f', '[]', %s)", [given])
            given = Jsonb({"flow": flow, "node": "a", "run_in": 60})
            application.execute("SELECT drain_stage('m.f', '[]', %s)", [given])
        assert application.execute(count, [flow]).fetchall() == [(1, 0, 0, 1, "running")]
    query(place.url, "DELETE FROM job_edges WHERE node = 'a'")
    with place.connected("enqueuer") as leader:
        Unblocker(leader).run_all()
        assert PastFlows(leader).run_once() == 0
    with place.connected("inspection") as reader:
        assert reader.execute(count, [flow]).fetchall() == [(0, 0, 0, 0, "finished")]
        assert reader.execute("SELECT name FROM flows").fetchall() == [("a",)]
    assert query(place.url, "SELECT superseded_by FROM finished_jobs ORDER BY id") == [(None,), (flow,)]


def test_a_worker_parks_a_job_an_application_emits_and_an_enqueuer_ends_the_wait(place: Place) -> None:
    with place.connected("application") as application:
        (job_id,) = stage_many(application, "m.f", [(1,)])
    with place.connected("enqueuer") as leader:
        staged.move(leader, [job_id], 0)
    with place.connected("worker") as worker:
        claim = claims.claim(worker, job_id, worker="w", limits={})
        assert claim is not None
        # Again under the same name too.
        for _ in range(2):
            assert waits.park(worker, claim, "a", "a", 60.0)
            query(place.url, "UPDATE inflight_jobs SET next_run_at = NULL")
        assert waits.park(worker, claim, "a", "a", None)
    with place.connected("application") as application:
        assert emit(application, "a") == 1
    with place.connected("enqueuer") as leader:
        assert waits.match(leader, None).resumed == 1
        assert waits.match(leader, waits.match(leader, None).snapshot).found == 0
        assert waits.delete_old_events(leader, 1) == 0
    with place.connected("worker") as worker:
        kept = steps.read(worker, claim)
        assert {name: step.result for name, step in kept.items()} == {"a": '{"event": null}'}


def test_an_enqueuer_settles_unique_keys_and_deletes_expired_idempotency_keys(
    place: Place, redis_url: str
) -> None:
    with place.connected("application") as application:
        for keep in ("first", "last"):
            for _ in range(2):
                stage(application, "m.f", unique_key=keep, keep=keep, idempotency_key=f"{keep}{_}")
        stage(application, "m.f", unique_key="quiet", quiet=timedelta(days=1))
    query(place.url, "UPDATE staged_jobs SET matured_at = now() WHERE unique_key = 'quiet'")
    query(place.url, "UPDATE idempotency_keys SET expires_at = now() - interval '1 day'")
    step = (
        "INSERT INTO job_steps (job_id, name, result, seconds, fencing_token) VALUES (%s, 'step', '1', 1, 1)"
    )
    (deleted, staged) = (2**50, *ids_in(place.url, "staged_jobs")[:1])
    for job_id in (deleted, staged):
        query(place.url, step, job_id)
    assert Daemon(enqueuer_of(place, redis_url)).run_once() == 2
    assert query(place.url, "SELECT job_id FROM job_steps") == [(staged,)]
    query(place.url, "INSERT INTO staged_jobs (job_name, unique_key, keep) VALUES ('m.f', 'last', 'last')")
    query(place.url, "UPDATE inflight_jobs SET claimed_at = now(), next_run_at = now() + interval '1 day'")
    assert Daemon(enqueuer_of(place, redis_url)).run_once() == 1
    assert query(place.url, "SELECT count(*) FROM finished_jobs WHERE superseded_by IS NOT NULL") == [(3,)]
    assert query(place.url, "SELECT unique_key FROM staged_jobs") == [("quiet",)]
    assert query(place.url, "SELECT FROM idempotency_keys") == []


def test_an_enqueuer_leads_drains_and_delivers_again(place: Place, redis_url: str) -> None:
    with place.connected("application") as application:
        stage_many(application, "m.f", [(1,), (2,), (3,)])
        stage(application, "m.f", queue="away")
        stage(application, "m.f", expires_at=NOW - timedelta(days=1))
        scheduled = stage(application, "m.f", run_at=NOW + timedelta(days=1))
    settings = enqueuer_of(place, redis_url)
    assert Daemon(settings).run_once() == 4
    assert len(ids_in(place.url, "inflight_jobs")) == 3
    assert len(ids_in(place.url, "dead_jobs")) == 1
    query(place.url, "UPDATE staged_jobs SET scheduled_at = staged_at + interval '1 microsecond'")
    query(place.url, "UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 s' WHERE id = 1")
    query(
        place.url,
        "UPDATE inflight_jobs SET next_run_at = now() - interval '1 s', failed_at = now() WHERE id = 2",
    )
    assert Daemon(settings).run_once() == 3
    assert scheduled in pushed_jobs(redis_url)


def test_an_enqueuer_runs_as_a_daemon_with_metrics(place: Place, redis_url: str) -> None:
    daemon = Daemon(enqueuer_of(place, redis_url))
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        with place.connected("application") as application:
            (job_id,) = stage_many(application, "m.f", [(1,)])
        wait_until(lambda: job_id in pushed_jobs(redis_url))
        wait_until(lambda: daemon.answers().unready() is None)
        wait_until(lambda: daemon._gauges._stale is not None)
    finally:
        daemon.stop()
        thread.join()


def test_an_enqueuer_knows_how_long_jobs_wait(place: Place, redis_url: str) -> None:
    with place.connected("application") as application:
        stage_many(application, "m.f", [(1,)])
    with new_enqueuer(place.url_of("enqueuer"), redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        enqueuer.drain()
        redelivery.run_once()
        waits = Waits(enqueuer, redelivery)
        assert waits.measure().keys() == {"default"}
        assert not waits.refused


def test_an_enqueuer_measures_everything_except_transactions_of_other_roles(
    place: Place, redis_url: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    file = tmp_path / "queues.toml"
    file.write_text('[flow.a]\nslo = "90% finish within 10m"', encoding="utf-8")
    objectives = FlowObjectives(file)
    with new_enqueuer(place.url_of("enqueuer"), redis_url) as enqueuer:
        objectives.ended(enqueuer.connection, [1])
        gauges = Gauges(enqueuer.redis, flow_objectives=objectives)
        gauges.run_once(enqueuer, Waits(enqueuer, Redelivery(enqueuer)))
        assert [record.getMessage() for record in caplog.records if "not measured" in record.msg] == []
        assert math.isnan(metrics.OLDEST_TRANSACTION._value.get())
        assert metrics.READY_PARTITIONS._value.get() <= 3
        gauges.clear()


def test_an_enqueuer_skips_locked_rows_buries_rows_truncates_and_creates_days(
    place: Place,
) -> None:
    day = partition_in(2)
    query(place.url, f"DROP TABLE {day}")
    with place.connected("application") as application:
        ids = stage_many(application, "m.f", [(1,), (2,)])
    with place.connected("enqueuer") as leader:
        (lane,) = lanes.find_lanes(leader, lanes.KINDS)
        found = lanes.read_due(leader, [lanes.Head(lane, 10)], skip_locked=True)
        assert [row.id for row in found[lane]] == ids
        assert [row.job_args for row in staged.read_forwardable(leader, ids)] == ["[1]", "[2]"]
        assert staged.bury(leader, ids[:1], "unreadable", "x") == 1
        staged.delete_forwarded(leader, ids[1:])
        assert finished.make_days(leader, 3) == 1
        assert finished.drop_old_day(leader, 1) is None
        emptied = [
            leader.execute(f"SELECT drain_truncate_if_empty('staged_jobs_ready_{turn}')").fetchone()
            for turn in range(3)
        ]
        assert emptied == [(True,)] * 3
    assert query(place.url, "SELECT relowner::regrole::text FROM pg_class WHERE relname = %s", day) == [
        (OWNER,)
    ]


@pytest.mark.parametrize("ordered", [False, True])
def test_an_enqueuer_applies_queue_rules(place: Place, ordered: bool) -> None:
    rate = Rate.parse("5/s")
    rules = Rules("default", running_per_key=1, rate=rate, rate_per_key=rate, ordered=ordered)
    query(
        place.url, "INSERT INTO staged_jobs (job_name, key) VALUES ('m.f', 'a'), ('m.f', 'a'), ('m.f', NULL)"
    )
    with place.connected("enqueuer") as leader:
        queue = RuledQueue(leader, rules)
        queue.look()
        with leader.transaction():
            rows = queue.select(10, skip_locked=True)
            staged.move(leader, [row.id for row in rows], 0)
        queue.admitted(rows)
        queue.look()
        assert queue.redeliverable(10) == []
        assert [claim.number for claim in running.last_claims(leader, [1, 3], 60).values()] == [0, 0]
        RuledQueue(leader, Rules("default", running=1, aging_seconds=1)).look()

    assert sorted(row.id for row in rows) == [1, 3]


@pytest.fixture
def shop(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """A worker that logs in as one, on a table of an application."""
    monkeypatch.setattr(registry, "_jobs", {})
    query(place.url, "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, label text)")
    query(place.url, "GRANT SELECT, INSERT ON effects TO drain_worker")
    with closing(Worker(Settings(database_url=place.url_of("worker")))) as worker:
        yield Workshop(place.url, worker)
    close_all()


def test_a_dead_jobs_steps_are_undone_with_the_rights_of_its_roles(
    shop: Workshop, place: Place, redis_url: str
) -> None:
    def act() -> None:
        for name in ("reserve", "charge"):
            workers.step_transaction.options(undo=jobs_with_undo.take_back)(name, jobs_with_undo.write, name)
        raise workers.Dead

    workers.job(name="tests.act")(act)
    with place.connected("application") as application:
        job_id = stage(application, "tests.act")
    for each, word in ((job_id, "dead"), (job_id + 1, "finished")):
        assert Daemon(enqueuer_of(place, redis_url)).run_once() == 1
        assert shop.worker.execute(each) == word
    assert shop.effects() == ["reserve", "charge", "undo charge", "undo reserve"]
    assert shop.row(job_id + 1)["staged_by"] == shop.row(job_id)["staged_by"]
    assert query(place.url, "SELECT DISTINCT job_id FROM job_steps") == [(job_id + 1,)]


def test_a_dependent_pair_runs_with_the_rights_of_its_roles(
    shop: Workshop, place: Place, redis_url: str
) -> None:
    seen: list[Any] = []
    workers.job(name="tests.parent", result="keep")(lambda: 42)
    workers.job(name="tests.child")(lambda: seen.append(workers.current_job().results))
    with place.connected("application") as application:
        parent = stage(application, "tests.parent")
        child = stage(application, "tests.child", after=parent)
        never = stage(application, "tests.child", after=stage(application, "tests.parent", expires_at=NOW))
    for job_id in (parent, child):
        assert Daemon(enqueuer_of(place, redis_url)).run_once() == 1
        assert shop.work(job_id) == "finished"
    assert seen == [{parent: 42}]
    assert ids_in(place.url, "dead_jobs") == [never - 1, never]


def test_a_worker_records_steps_and_skips_recorded_ones(shop: Workshop) -> None:
    def act() -> None:
        workers.step("outside", lambda: 1)
        workers.step_transaction("inside", lambda session: leave(session, "once"))
        if workers.current_job().attempt == 1:
            raise OSError

    assert shop.work_to_the_end(shop.delivered(act)) == ["retrying", "finished"]
    assert shop.effects() == ["once"]


def test_a_worker_finishes_retries_defers_and_gives_up(shop: Workshop) -> None:
    def act(number: int) -> None:
        if number == 1:
            raise RuntimeError
        if number == 2:
            raise Defer(0.001)
        if number == 3:
            raise Dead("enough")
        workers.current_job()

    registered = workers.job(name=NAME, max_attempts=2)(act)
    assert shop.work_to_the_end(shop.deliver(registered, 0)) == ["finished"]
    assert shop.work_to_the_end(shop.deliver(registered, 1)) == ["retrying", "dead"]
    assert shop.work(shop.deliver(registered, 2)) == "deferred"
    assert shop.work_to_the_end(shop.deliver(registered, 3)) == ["dead"]


def test_a_workers_job_writes_and_finishes_in_either_kind_of_transaction(shop: Workshop) -> None:
    def act(kind: str) -> None:
        if kind == "psycopg":
            with workers.psycopg_transaction() as connection:
                connection.execute("INSERT INTO effects (label) VALUES ('psycopg')")
        else:
            import sqlalchemy

            with workers.transaction() as session:
                session.execute(sqlalchemy.text("INSERT INTO effects (label) VALUES ('sqlalchemy')"))

    registered = workers.job(name=NAME)(act)
    for kind in ("psycopg", "sqlalchemy"):
        assert shop.work(shop.deliver(registered, kind)) == "finished"
    assert shop.effects() == ["psycopg", "sqlalchemy"]


@pytest.mark.parametrize("kind", ["returned", "psycopg", "sqlalchemy", "after"])
def test_a_worker_keeps_a_result_and_an_application_reads_it(shop: Workshop, place: Place, kind: str) -> None:
    def act() -> int:
        if kind == "after":
            with workers.psycopg_transaction():
                pass
        elif kind != "returned":
            with workers.transaction() if kind == "sqlalchemy" else workers.psycopg_transaction():
                workers.current_job().set_result(42)
        return 42

    job_id = shop.deliver(workers.job(name=NAME, result="keep")(act))
    query(place.url, "UPDATE inflight_jobs SET staged_by = 'test_application'")
    with place.connected("application") as application:
        found = state_of(application, job_id)
        assert found is not None
        assert found.state == "waiting"
        assert shop.work(job_id) == "finished"
        assert result_of(application, job_id) == 42
    with place.connected("inspection") as inspection:
        assert result_of(inspection, job_id) == 42


def test_a_worker_with_version_5_rights_reports_a_result_it_cannot_add(
    shop: Workshop, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> int:
        with workers.psycopg_transaction():
            pass
        return 42

    query(place.url, "REVOKE UPDATE (result) ON finished_jobs FROM drain_worker")
    assert shop.work(shop.deliver(workers.job(name=NAME, result="keep")(act))) == "finished"
    assert "its code after the transaction failed" in caplog.text
    assert "permission denied for table finished_jobs" in caplog.text


def test_a_worker_records_a_stale_outcome(shop: Workshop) -> None:
    def act() -> None:
        shop.take_over(workers.current_job().id)

    assert shop.work(shop.delivered(act)) == "stale"
    assert len(shop.stale_finishes()) == 1


def test_a_worker_claims_extends_gives_back_and_finishes_many_at_once(place: Place) -> None:
    with place.connected("application") as application:
        ids = stage_many(application, "m.f", [(number,) for number in range(3)])
    with place.connected("enqueuer") as leader:
        staged.move(leader, ids, 0)
    with place.connected("worker") as worker:
        assert queries.queues(worker) == {"default"}
        held = claims.claim_many(worker, deliveries(worker, ids), worker="w", limits={})
        assert len(leases.extend_many(worker, held)) == 3
        assert len(leases.release(worker, [held[0]])) == 1
        assert claims.left_to_claim(worker, deliveries(worker, ids)) == {held[0].id}
        assert claims.read_claim(worker, held[1], {}) is not None
        assert finishes.finish_many(worker, held[1:]) == set(ids[1:])
        assert finishes.is_finished(worker, held[1])
        assert finishes.undone_by_crash(worker, held[1:]) == set()


def test_a_worker_declares_schedules_and_an_enqueuer_stages_their_ticks(place: Place) -> None:
    declared = {"name": "m.f", "job_name": "m.f", "cron": "* * * * *", "timezone": "UTC", "missed": "last"}
    with place.connected("worker") as worker:
        for queue in ("mail", "default"):
            options = {"options": {"queue": queue}, "declared": True}
            assert crons.declare(worker, [declared | options]) == ["m.f"]
    query(place.url, "INSERT INTO crons (name, job_name, cron, error) VALUES ('n', 'm.f', '0 0 31 2 *', 'x')")
    query(place.url, "UPDATE crons SET next_tick_at = date_trunc('minute', now()) WHERE name = 'm.f'")

    with place.connected("enqueuer") as leader:
        assert Ticker(leader).run_once() == 2
    with place.connected("inspection") as inspection:
        found = crons.all_schedules(inspection)

    assert [each["error"] is None for each in found] == [True, False]
    assert [each["last_job_id"] for each in found] == [*ids_in(place.url, "staged_jobs"), None]
    with place.connected("application") as application, pytest.raises(psycopg.errors.InsufficientPrivilege):
        schedule(application, "mine", "m.f", cron="* * * * *")


def test_a_worker_stages_if_it_also_has_the_application_role(place: Place) -> None:
    query(place.url, "GRANT drain_application TO test_worker")
    try:
        with place.connected("worker") as worker:
            stage(worker, "m.f")
    finally:
        query(place.url, "REVOKE drain_application FROM test_worker")
    assert len(ids_in(place.url, "staged_jobs")) == 1


def test_a_workers_job_slows_down_its_key(shop: Workshop) -> None:
    def act() -> None:
        raise RateLimited(retry_after=60)

    registered = workers.job(name=NAME)(act)
    for _ in range(2):
        assert shop.work(shop.deliver(registered)) == "deferred"
        found = query(shop.database_url, "SELECT queue, until > now() FROM queue_pauses")
        assert found == [("default", True)]
        query(shop.database_url, "UPDATE queue_pauses SET until = now()")


def test_an_operator_edits_rules_pauses_and_resumes(place: Place) -> None:
    env = {"DRAIN_DATABASE_URL": place.url_of("operator")}
    for words in (
        ["set", "calls", "--running", "5"],
        ["set", "calls", "--fair", "--weight", "acme=2"],
        ["show", "calls"],
        ["pause", "calls", "--key", "acme", "--for", "1m"],
        ["pause", "calls", "--key", "acme", "--for", "2m"],
        ["list"],
        ["resume", "calls", "--key", "acme"],
        ["unset", "calls"],
    ):
        result = drain(["queue", *words], env)
        assert result.exit_code == 0, (words, result.output)


def test_inspection_reads_flows_and_an_operator_who_may_inspect_cancels_them(
    place: Place, redis_url: str
) -> None:
    with place.connected("application") as application, application.transaction():
        ((flow_id,),) = application.execute('SELECT id FROM drain_flow(\'{"name": "etl"}\')').fetchall()
        for options in (f'{{"flow": {flow_id}, "on": "complete"}}', f'{{"flow": {flow_id}, "node": "a"}}'):
            application.execute("SELECT drain_stage('m.f', '[]', %s::text::jsonb)", (options,))
    env = {"DRAIN_DATABASE_URL": place.url_of("inspection"), "DRAIN_REDIS_URL": redis_url}
    for words in (["list"], ["show", "etl"], ["explain", "etl"]):
        result = drain(["flow", *words], env)
        assert result.exit_code == 0, (words, result.output)
    for words in (["cancel", "etl", "--yes"], ["pause", "etl"], ["resume", "etl"]):
        result = drain(["flow", *words], env)
        assert result.exit_code == 1
        assert "`drain roles` prints the rights" in result.stderr
    # Roles belong to the server.
    query(place.url, "GRANT SELECT ON flows, job_edges, finished_jobs, dead_jobs TO test_operator")
    env = {"DRAIN_DATABASE_URL": place.url_of("operator")}
    for words in (["pause", "etl"], ["resume", "etl"]):
        assert drain(["flow", *words], env).exit_code == 1
    cancelled = drain(["flow", "cancel", "etl", "--yes"], env)
    assert cancelled.stdout == f"cancelled: flow {flow_id} etl, 1 member\n", cancelled.output
    assert len(ids_in(place.url, "dead_jobs")) == 3
    for words in (["flow", "retry", str(flow_id)], ["dead", "retry", "--all"], ["dead", "discard", "--all"]):
        assert "`drain roles` prints the rights" in drain([*words, "--yes"], env).stderr


def test_inspection_sees_everything(place: Place, redis_url: str) -> None:
    with place.connected("application") as application:
        ids = stage_many(application, "m.f", [(number,) for number in range(3)])
    with place.connected("enqueuer") as leader:
        staged.move(leader, ids[:1], 0)
        staged.bury(leader, ids[1:2], "unreadable", "x")
    env = {"DRAIN_DATABASE_URL": place.url_of("inspection"), "DRAIN_REDIS_URL": redis_url}
    for words in (
        ["status"],
        ["list", "staged"],
        ["list", "inflight"],
        ["list", "finished"],
        ["dead", "list"],
        ["queue", "list"],
    ):
        assert drain(words, env).exit_code == 0, words
    for job_id in ids:
        assert drain(["show", str(job_id)], env).exit_code == 0
    with place.connected("inspection") as reader, closing(Producer(redis_url, NAMESPACE)) as redis:
        query(place.url, "DELETE FROM inflight_jobs")
        assert audit(reader, redis, patience_seconds=0).ok
        assert len(finished.days(reader)) == 4


def test_the_owner_may_do_everything_including_what_others_may_not(place: Place) -> None:
    url = place.url_of("owner")
    assert schema.install(url) == schema.VERSION
    with place.connected("application") as application:
        (job_id,) = stage_many(application, "m.f", [(1,)])
    with place.connected("enqueuer") as leader:
        staged.bury(leader, [job_id], "unreadable", "x")
    with place.connected("owner") as owner:
        assert dead.revive(owner, Selection()) == 1
        today = next(day for day in finished.days(owner) if day.date == datetime.now(UTC).date())
        assert finished.remove_day(owner, today, finished.checksum(owner, today))
        bulk.begin(owner, "run", None)
        with bulk.staging(owner, "run", ["job_name", "scheduled_at"]) as copying:
            copying.write(b"m.f,2030-01-01\n", 1)
    assert query(
        place.url,
        f"SELECT count(*) FROM pg_class WHERE relowner <> '{OWNER}'::regrole "
        "AND relnamespace = 'public'::regnamespace",
    ) == [(0,)]
    assert query(place.url, "SELECT rolcanlogin, rolsuper FROM pg_roles WHERE rolname = %s", OWNER) == [
        (False, False)
    ]


@pytest.fixture
def elsewhere(servers: Services, place: Place) -> str:
    """The URL of a database with our tables in a schema that has a name of its own, and in no other."""
    query(place.url, 'DROP SCHEMA public CASCADE; CREATE SCHEMA "Jobs"')
    url = f"{place.url}&options=-csearch_path%3D%22Jobs%22"
    schema.install(url)
    return url


def test_roles_work_where_the_tables_are_in_another_schema(elsewhere: str, redis_url: str) -> None:
    assert drain(["roles", "--apply"], {"DRAIN_DATABASE_URL": elsewhere}).exit_code == 0
    logins = {role: elsewhere.replace("postgres@", f"test_{role}@", 1) for role in NAMES}
    with psycopg.connect(logins["application"]) as application:
        stage_many(application, "m.f", [(1,), (2,)])
    settings = Settings(database_url=logins["enqueuer"], redis_url=redis_url, namespace=NAMESPACE)
    assert Daemon(settings).run_once() == 2
    with postgres.connect(logins["worker"], "tests") as worker:
        claim = claims.claim(worker, 1, worker="w", limits={})
        assert claim is not None
        assert finishes.finish(worker, claim)
    with postgres.connect(logins["inspection"], "tests") as reader:
        assert system.read(reader, with_finished=True).finished == 1


@pytest.mark.usefixtures("processes")
def test_the_printed_statements_do_what_apply_does_and_are_idempotent(
    servers: Services, place: Place
) -> None:
    rights = (
        "SELECT oid::regclass::text, relacl::text, relowner::regrole::text FROM pg_class "
        "WHERE relnamespace = 'public'::regnamespace UNION ALL "
        "SELECT oid::regprocedure::text, proacl::text, proowner::regrole::text FROM pg_proc "
        "WHERE pronamespace = 'public'::regnamespace UNION ALL "
        "SELECT attrelid::regclass || '.' || attname, attacl::text, '' FROM pg_attribute WHERE attacl IS NOT NULL "
        "UNION ALL SELECT nspname, nspacl::text, '' FROM pg_namespace WHERE nspname = 'public' ORDER BY 1"
    )
    env = {"DRAIN_DATABASE_URL": place.url}
    before = query(place.url, rights)
    assert drain(["roles", "--apply", "--owner", OWNER], env).exit_code == 0
    assert query(place.url, rights) == before

    query(place.url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    schema.install(place.url)
    names = {f"--{role}": f"test_printed_{role}" for role in (*DEFAULT_NAMES, "owner")}
    words = ["roles", *(word for pair in names.items() for word in pair)]
    try:
        printed = drain(words, env).output
        for _ in range(2):
            psql(servers.postgres, place.url, printed)
        by_psql = query(place.url, rights)
        query(place.url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        schema.install(place.url)
        assert drain([*words, "--apply"], env).exit_code == 0
        assert query(place.url, rights) == by_psql
    finally:
        query(place.url, "DROP SCHEMA public CASCADE")
        for name in names.values():
            query(place.url, f"DROP ROLE {name}")


def test_public_loses_the_right_to_create_in_our_schema(place: Place) -> None:
    query(place.url, "GRANT CREATE ON SCHEMA public TO PUBLIC")
    assert not place.refuses("mallory", "CREATE TABLE public.mine (id bigint)")
    assert drain(["roles", "application", "--apply"], {"DRAIN_DATABASE_URL": place.url}).exit_code == 0
    assert place.refuses("mallory", "CREATE TABLE public.another (id bigint)")
    with place.connected("enqueuer") as leader:
        query(place.url, f"DROP TABLE {partition_in(3)}")
        assert finished.make_days(leader, 3) == 1
        assert finished.drop_old_day(leader, 1) is None


def test_an_owner_who_may_create_roles_needs_no_superuser(place: Place) -> None:
    query(place.url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    query(place.url, "CREATE ROLE test_boss LOGIN CREATEROLE; ALTER SCHEMA public OWNER TO test_boss")
    try:
        url = place.url_of("boss")
        schema.install(url)
        words = ["roles", "application", "--application", "test_of_boss", "--apply"]
        for _ in range(2):
            assert drain(words, {"DRAIN_DATABASE_URL": url}).exit_code == 0
        with psycopg.connect(place.url, options="-crole=test_of_boss") as application:
            stage(application, "m.f")
    finally:
        query(place.url, "DROP SCHEMA public CASCADE")
        for role in ("test_of_boss", "test_boss"):
            query(place.url, f"DROP ROLE IF EXISTS {role}")


def test_a_user_who_may_not_grant_rights_gets_one_line_and_no_change(place: Place) -> None:
    found = drain(
        ["roles", "--apply", "--worker", "test_never_made"],
        {"DRAIN_DATABASE_URL": place.url_of("inspection")},
    )
    assert found.exit_code == 1
    assert found.output.startswith("Error: PostgreSQL refused: permission denied")
    assert found.output.endswith("; `drain roles` prints the rights of each role\n")
    assert found.output.count("\n") == 1
    assert query(place.url, "SELECT FROM pg_roles WHERE rolname = 'test_never_made'") == []


@pytest.mark.parametrize("name", ["", "a b", "a'b", 'a"b', "$$", "1a", "x" * 64])
def test_an_unsuitable_role_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid role name"):
        roles.statements(Installation("public", "me", False, ()), {"application": name})


def test_only_the_roles_that_are_named_are_printed(place: Place) -> None:
    env = {"DRAIN_DATABASE_URL": place.url}
    printed = drain(["roles", "application", "--application", "shop"], env).output
    assert 'TO "shop"' in printed
    assert 'drain_worker"' not in printed
    assert "superuser" not in printed


def test_a_superuser_who_owns_the_tables_is_advised_to_transfer_them(place: Place) -> None:
    found = roles.installation_of(postgres.connect(place.url, "tests"))
    assert "--owner NAME" in roles.script(replace(found, owner_is_superuser=True), [])


def partition_in(days: int) -> str:
    """The partition of finished jobs of a day to come."""
    return f"finished_jobs_{datetime.now(UTC) + timedelta(days=days):%Y%m%d}"


def enqueuer_of(place: Place, redis_url: str) -> Settings:
    return Settings(
        database_url=place.url_of("enqueuer"),
        redis_url=redis_url,
        namespace=NAMESPACE,
        forward_queues=frozenset({"away"}),
    )


def drain(words: Sequence[str], env: dict[str, str]) -> Result:
    return CliRunner().invoke(main, list(words), env=env)


def psql(server: EmbeddedPostgres, url: str, script: str) -> None:
    command = [str(server.bin_directory / "psql"), url, "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet"]
    subprocess.run(command, input=script, text=True, check=True, capture_output=True)

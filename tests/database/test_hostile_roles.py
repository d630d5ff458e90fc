"""A role without rights gets nobody to run what is its own, whatever it makes, and whatever it is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import psycopg
import pytest
from psycopg.types.json import Jsonb

import drain
from drain import stage, stage_many
from drain.audit import audit
from drain.config import Settings
from drain.database import postgres, roles, schema
from drain.database.grants import DEFAULT_NAMES
from drain.database.postgres import Connection
from drain.database.qualified import within
from drain.embedded import Services
from drain.enqueuer.daemon import Daemon
from drain.enqueuer.leader import try_to_lead
from drain.errors import SchemaError
from drain.read import queries, system, waiting_by_cause
from drain.read.explain import explain
from drain.tables import (
    bulk,
    claims,
    dead,
    finished,
    finishes,
    leases,
    outcomes,
    predecessors,
    staged,
    steps,
    waiting,
)
from drain.tables.bulk_flows import NewFlow
from drain.tables.claims import Claim
from drain.tables.dead import Selection
from drain.tables.steps import Step
from drain.wire import Producer
from tests import hostility
from tests.databases import copy_of
from tests.helpers import NAMESPACE, deliveries, query, wait_until
from tests.hostility import MALLORY, OWNER, Place, runs

OTHERS = ("application", "enqueuer", "worker", "operator", "inspection", "owner")
# What PostgreSQL's grammar spells itself (bigint, integer ...) nobody can take for anything else.
TYPES = ("date", "int8", "json", "jsonb", "regclass", "regnamespace", "text", "timestamptz", "uuid", "xid8")
TODAY = date.min
# Queues with rules, of each kind of source.
_LIMITS = {"running": "5", "running_per_key": "1", "rate": "'9/s'", "rate_per_key": "'9/s'"}
RULED = {
    "ordered": {**_LIMITS, "ordered": "true"},
    "fair": {**_LIMITS, "fair": "true"},
    "lanes": {"running": "5", "rate": "'9/s'"},
    "aging": {"running": "5", "aging_seconds": "1"},
}


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever day it was when the tests began."""
    monkeypatch.setattr(sys.modules[__name__], "TODAY", datetime.now(UTC).date())


class Function(NamedTuple):
    name: str
    types: list[str]
    is_trigger: bool

    @property
    def call(self) -> str:
        """A call whose arguments are of exactly the parameters' types, and make sense."""
        values = {
            "regclass": "'public.finished_jobs'::pg_catalog.regclass",
            "date": "current_date",
            "text": "'x'",
            "bytea": "'x'::bytea",
            "jsonb": """'{"job_name": "m.f"}'::pg_catalog.jsonb""",
            "json": "'1'::pg_catalog.json",
            "bigint[]": "'{1}'::bigint[]",
            "text[]": "'{run}'::pg_catalog.text[]",
        }
        given = (values.get(each, f"1::{each}") for each in self.types)
        return f"SELECT public.{self.name}({', '.join(given)})"


def functions(place: Place) -> list[Function]:
    """Every function of the schema, one that was added yesterday among them."""
    rows = query(
        place.url,
        "SELECT proname::text, proargtypes::regtype[]::text[], prorettype = 'trigger'::regtype FROM pg_proc "
        " WHERE pronamespace = 'public'::regnamespace AND proowner <> %s::regrole ORDER BY 1",
        MALLORY,
    )
    return [Function._make(row) for row in rows]


def day(number: int) -> str:
    return f"finished_jobs_{TODAY + timedelta(days=number):%Y%m%d}"


@pytest.fixture
def armed(servers: Services, template_with_roles: str) -> Iterator[Place]:
    """As PostgreSQL 14 is: a role without rights may create in `public`."""
    with copy_of(servers.postgres, template_with_roles) as url:
        place = Place(url)
        hostility.arm(place)
        yield place


def trap(connection: postgres.Connection) -> None:
    """Put into this session's pg_temp whatever a function could take for its own, and look there first."""
    connection.execute("SET search_path = pg_catalog, public")
    connection.execute("CREATE TABLE pg_temp.ours AS SELECT 1 AS id")
    for name in TYPES:
        connection.execute(
            f"CREATE DOMAIN pg_temp.{name} AS pg_catalog.{name} CHECK (public.evil())".encode()
        )
    for name in ("now", "current_setting"):
        connection.execute(
            f"CREATE FUNCTION pg_temp.{name}() RETURNS pg_catalog.text LANGUAGE sql "
            "AS 'SELECT public.evil()::pg_catalog.text'".encode()
        )
    connection.execute(
        "CREATE FUNCTION pg_temp.to_char(pg_catalog.date, pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql "
        "AS 'SELECT public.evil(); SELECT ''evil''::pg_catalog.text'"
    )
    connection.execute(
        "CREATE OPERATOR pg_temp.|| (LEFTARG = pg_catalog.date, RIGHTARG = pg_catalog.text, FUNCTION = pg_temp.to_char)"
    )
    connection.execute(
        "CREATE FUNCTION pg_temp.run() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN PERFORM public.evil(); RETURN NEW; END'"
    )
    tables = (
        "finished_jobs",
        "finished_jobs_other",
        "inflight_jobs",
        "dead_jobs",
        "staged_jobs_scheduled",
        "job_edges",
        "job_events",
        "pg_class",
        "pg_inherits",
    )
    for table in tables:
        connection.execute(
            f"CREATE TABLE pg_temp.{table} (id pg_catalog.int8 CHECK (public.evil()), oid pg_catalog.oid, "
            "finished_at pg_catalog.timestamptz, name pg_catalog.text DEFAULT public.evil()::pg_catalog.text)".encode()
        )
        connection.execute(
            f"CREATE TRIGGER run BEFORE INSERT OR DELETE OR UPDATE ON pg_temp.{table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.run()".encode()
        )
    connection.execute("SET search_path = pg_temp, public, pg_catalog")


def test_a_role_without_rights_may_call_no_function(armed: Place) -> None:
    found = functions(armed)
    assert len(found) >= 8
    with armed.connected("mallory") as mallory:
        trap(mallory)
        for function in found:
            # A function for triggers is refused to everybody, with another word.
            refusal = (
                psycopg.errors.FeatureNotSupported
                if function.is_trigger
                else psycopg.errors.InsufficientPrivilege
            )
            with pytest.raises((psycopg.errors.InsufficientPrivilege, refusal)):
                mallory.execute(function.call.encode())
    assert runs(armed) == 0


def test_a_role_that_may_call_every_function_cannot_escalate(armed: Place) -> None:
    query(armed.url, f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {MALLORY}")
    query(armed.url, f"DROP TABLE public.{day(2)}")
    with armed.connected("mallory") as mallory:
        trap(mallory)
        for function in functions(armed):
            # What it may not do with its own rights is refused; there is no telling which.
            with suppress(psycopg.Error):
                mallory.execute(function.call.encode())
    assert runs(armed) == 0


def test_the_function_that_makes_days_works_for_a_hostile_caller(armed: Place) -> None:
    query(armed.url, f"GRANT EXECUTE ON FUNCTION public.drain_make_days(integer) TO {MALLORY}")
    query(armed.url, f"DROP TABLE public.{day(2)}")
    with armed.connected("mallory") as mallory:
        trap(mallory)
        made = mallory.execute("SELECT public.drain_make_days(3)").fetchall()
    assert made == [(1,)]
    assert runs(armed) == 0
    assert query(armed.url, f"SELECT relowner::regrole::text FROM pg_class WHERE relname = '{day(2)}'") == [
        (OWNER,)
    ]


def test_the_function_that_drops_a_day_is_safe_for_a_hostile_caller(
    armed: Place,
) -> None:
    query(armed.url, f"GRANT EXECUTE ON FUNCTION public.drain_drop_old_day(integer) TO {MALLORY}")
    before = query(armed.url, "SELECT count(*) FROM pg_partition_tree('finished_jobs')")
    days = f"FROM ('{TODAY - timedelta(days=9)} 00:00+00') TO ('{TODAY - timedelta(days=8)} 00:00+00')"
    query(armed.url, f"CREATE TABLE public.{day(-9)} PARTITION OF finished_jobs FOR VALUES {days}")
    query(armed.url, f"ALTER TABLE public.{day(-9)} OWNER TO {OWNER}")
    with armed.connected("mallory") as mallory:
        trap(mallory)
        dropped = [
            mallory.execute("SELECT jobs FROM public.drain_drop_old_day(1)").fetchone() for _ in range(3)
        ]
    assert dropped == [(0,), (None,), (None,)]
    assert runs(armed) == 0
    assert query(armed.url, "SELECT count(*) FROM pg_partition_tree('finished_jobs')") == before


_BLOCKED = (
    "INSERT INTO public.staged_jobs (job_name, scheduled_at) VALUES ('m.f', '9999-12-29Z') RETURNING id"
)
_STAGED = "INSERT INTO public.staged_jobs (job_name) VALUES ('m.f') RETURNING id"
_AFTER = "SELECT public.drain_after(%s::bigint[], %s::bigint[], %s::pg_catalog.text[])"


def staged_by(connection: postgres.Connection, statement: str) -> int:
    (job_id,) = postgres.fetch_one(connection, statement)
    return int(job_id)


@pytest.fixture
def stagers(armed: Place) -> Place:
    """Where the hostile role is an application too."""
    for granted in (
        "INSERT (job_name, scheduled_at), SELECT (id) ON staged_jobs",
        "EXECUTE ON FUNCTION public.drain_after(bigint[], bigint[], text[])",
        "EXECUTE ON FUNCTION public.drain_stage_once(text, double precision, jsonb)",
    ):
        query(armed.url, f"GRANT {granted} TO {MALLORY}")
    return armed


def test_a_stager_adds_edges_only_to_its_own_new_blocked_jobs(stagers: Place) -> None:
    with stagers.connected("application") as application:
        parent, theirs = (staged_by(application, statement) for statement in (_STAGED, _BLOCKED))
    with stagers.connected("mallory") as mallory, stagers.connected("application") as application:
        committed = staged_by(mallory, _BLOCKED)
        trap(mallory)
        with application.transaction():
            uncommitted = staged_by(application, _BLOCKED)
            for child in (theirs, uncommitted, committed, parent, 2**50, None):
                with pytest.raises(psycopg.errors.InvalidParameterValue, match="blocked job"):
                    mallory.execute(_AFTER.encode(), [[child], [parent], ["run"]])
        with mallory.transaction():
            scheduled, own = staged_by(mallory, _STAGED), staged_by(mallory, _BLOCKED)
            with pytest.raises(psycopg.errors.InvalidParameterValue), mallory.transaction():
                mallory.execute(_AFTER.encode(), [[own, scheduled], [parent, parent], ["run", "run"]])
            mallory.execute(_AFTER.encode(), [[own], [parent], ["hold"]])
            # A second edge of the pair changes nothing.
            mallory.execute(_AFTER.encode(), [[own], [parent], ["run"]])
    assert query(stagers.url, "SELECT child_id, parent_id, awaited_id, on_failure, state FROM job_edges") == [
        (own, parent, parent, "hold", "waiting")
    ]
    assert runs(stagers) == 0


def test_nulls_and_nonsense_add_no_edges(stagers: Place) -> None:
    with stagers.connected("application") as application:
        parent = staged_by(application, _STAGED)
    errors = psycopg.errors
    with stagers.connected("mallory") as mallory:
        trap(mallory)
        with mallory.transaction():
            own, later = staged_by(mallory, _BLOCKED), staged_by(mallory, _STAGED)
            for children, parents, choices, refusal in (
                ([own], [None], ["run"], errors.ForeignKeyViolation),
                ([own], [2**50], ["run"], errors.ForeignKeyViolation),
                ([None], [parent], ["run"], errors.InvalidParameterValue),
                ([own, own], [parent], ["run"], errors.NotNullViolation),
                ([own], [parent, parent], ["run"], errors.NotNullViolation),
                ([own], [parent], ["run", "run"], errors.NotNullViolation),
                ([own], None, None, errors.NotNullViolation),
                ([own], [parent], ["nonsense"], errors.CheckViolation),
                ([own], [own], ["run"], errors.CheckViolation),
                ([own], [later], ["run"], errors.CheckViolation),
            ):
                with pytest.raises(refusal), mallory.transaction():
                    mallory.execute(_AFTER.encode(), [children, parents, choices])
            mallory.execute(_AFTER.encode(), [None, None, None])
            mallory.execute(_AFTER.encode(), [[], [], []])
            mallory.execute(_AFTER.encode(), [[own], [parent], [None]])
        for after in ("{}", '["x"]', f"[[{2**50}]]", f"[[null, {parent}]]", '[[[1], "run"]]', "7"):
            job = f'{{"job_name": "m.f", "after": {after}}}'
            with pytest.raises(psycopg.Error):
                mallory.execute("SELECT public.drain_stage_once('key', 60, %s)", [job])
    assert query(stagers.url, "SELECT child_id, on_failure FROM job_edges") == [(own, "cancel")]
    assert query(stagers.url, "SELECT FROM idempotency_keys") == []
    assert runs(stagers) == 0


def test_staging_jobs_that_wait_for_others_runs_no_hostile_overload(hostile_place: Place) -> None:
    after = {"after": [1, [2, "run"]], "on_failure": "hold"}
    with hostile_place.connected("application") as application:
        assert stage_many(application, "m.f", [(1,), (2,)]) == [1, 2]
        for options in (after, {**after, "idempotency_key": "once"}, {**after, "run_in": 60}):
            application.execute(
                "SELECT public.drain_stage('m.f'::text, '[]'::jsonb, %s::jsonb)", [Jsonb(options)]
            )
        stage_many(application, "m.f", [(1,), (2,)], key=str)
        stage(application, "m.f", after=[1, drain.After(2, "run")], on_failure="hold")
        stage_many(application, "m.f", [(1,), (2,)], after=[1], run_at=datetime.now(UTC), key=str)
    assert query(hostile_place.url, "SELECT count(*), min(state) FROM job_edges") == [(10, "waiting")]
    assert runs(hostile_place) == 0


def test_emitting_an_event_runs_nothing_of_another_role(armed: Place) -> None:
    query(armed.url, f"GRANT EXECUTE ON FUNCTION public.drain_emit(text, jsonb) TO {MALLORY}")
    with armed.connected("mallory") as mallory:
        trap(mallory)
        for event, payload in ((None, "1"), ("", "1"), ("a\n", "1"), ("a", f'"{"x" * 65_536}"')):
            with pytest.raises(psycopg.IntegrityError):
                mallory.execute("SELECT public.drain_emit(%s, %s)", [event, payload])
        mallory.execute("SELECT public.drain_emit('a'::pg_catalog.text)")
    assert query(armed.url, "SELECT name, payload, emitted_by FROM job_events") == [("a", None, MALLORY)]
    assert runs(armed) == 0


def test_batches_and_flows_run_no_hostile_overload(hostile_place: Place) -> None:
    flow = drain.Flow("docs", idempotency_key="once", deadline=timedelta(1), on_complete=("m.f", [1]))
    flow.add("a", "m.f", unique_key="u", quiet=timedelta(1))
    flow.add("b", "m.f", after=["a"], run_at=datetime.now(UTC))
    with hostile_place.connected("application") as application, application.transaction():
        with drain.batch(application, on_success="m.f", on_dead="m.f") as batch:
            batch.stage("m.f", priority=1)
            batch.stage_many("m.f", [(1,), (2,)], key=str)
        found = flow.stage(application)
        assert flow.stage(application).jobs == found.jobs
        stage(application, "m.f", flow=found, node="c", after=["a", drain.After(batch, "run")])
        progress = drain.flow_progress(application, found)
    assert progress is not None
    assert progress.total == 3
    assert runs(hostile_place) == 0


def test_only_these_functions_run_with_the_rights_of_their_owner(armed: Place) -> None:
    definers = query(
        armed.url,
        "SELECT proname, proconfig FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace "
        "ORDER BY proname",
    )
    closed = ["search_path=pg_catalog, pg_temp"]
    by_id = [*closed, "plan_cache_mode=force_generic_plan", "enable_seqscan=off"]
    assert definers == [
        ("drain_after", by_id),
        ("drain_callback", by_id),
        *(
            (name, closed)
            for name in ("drain_drop_old_day", "drain_emit", "drain_flow", "drain_flow_progress")
        ),
        ("drain_job_state", closed),
        ("drain_join", by_id),
        ("drain_make_days", closed),
        ("drain_node", by_id),
        *(
            (name, [*closed, "enable_seqscan=off"])
            for name in ("drain_record_undo", "drain_record_undoable_step")
        ),
        ("drain_stage_once", [*closed, "quote_all_identifiers=off"]),
    ]


@pytest.mark.parametrize(
    "squat",
    [
        "CREATE TABLE public.{name} (LIKE public.finished_jobs)",
        "CREATE VIEW public.{name} AS SELECT public.evil()",
        "CREATE TYPE public.{name} AS ENUM ('a')",
        "CREATE DOMAIN public.{name} AS text CHECK (public.evil())",
        "CREATE TABLE public.{name} (id bigint CHECK (public.evil()), finished_at text DEFAULT public.evil()::text)",
    ],
)
def test_a_foreign_object_named_like_a_day_is_not_attached(armed: Place, squat: str) -> None:
    for number in (2, 3):
        query(armed.url, f"DROP TABLE public.{day(number)}")
    query(armed.url, "GRANT SELECT ON public.finished_jobs TO PUBLIC")
    with armed.connected("mallory") as mallory:
        mallory.execute(squat.format(name=day(2)).encode())
    with armed.connected("enqueuer") as leader:
        assert finished.make_days(leader, 3) == 1
        assert day(2) not in [each.partition for each in finished.days(leader)]
        assert day(3) in [each.partition for each in finished.days(leader)]
        assert finished.make_days(leader, 3) == 0
    assert runs(armed) == 0


def test_init_refuses_a_foreign_function_with_one_of_our_names(
    servers: Services, template_with_roles: str
) -> None:
    with copy_of(servers.postgres, "template1") as url:
        place = Place(url)
        hostility.arm(place)
        with place.connected("mallory") as mallory:
            mallory.execute(
                "CREATE FUNCTION public.drain_finish(job bigint, token bigint) RETURNS boolean LANGUAGE sql "
                "AS 'SELECT true'"
            )
        with pytest.raises(SchemaError, match=r"drain_finish .* is not job-drain's"):
            schema.install(place.url)
        assert query(place.url, "SELECT to_regclass('staged_jobs')") == [(None,)]
        assert runs(place) == 0


def test_the_schema_refuses_a_foreign_function_with_one_of_our_names(
    servers: Services, template_with_roles: str
) -> None:
    with copy_of(servers.postgres, "template1") as url:
        place = Place(url)
        hostility.arm(place)
        with place.connected("mallory") as mallory:
            mallory.execute(
                "CREATE FUNCTION public.drain_mine() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
            )
        with (
            psycopg.connect(place.url) as owner,
            pytest.raises(psycopg.errors.RaiseException, match=r"drain_mine\(\) belongs to the role"),
        ):
            owner.execute(schema.text().encode())


def test_a_leader_runs_no_hostile_overload(hostile_place: Place, redis_url: str) -> None:
    place = hostile_place
    with place.connected("application") as application:
        stage_many(application, "m.f", [(1,), (2,)])
        stage(application, "m.f", queue="away")
        stage(application, "m.f", expires_at=datetime.now(UTC) - timedelta(days=1))
        stage(application, "m.f", run_at=datetime.now(UTC) + timedelta(days=1))
        for keep in ("first", "last"):
            for _ in range(2):
                stage(
                    application,
                    "m.f",
                    unique_key=keep,
                    keep=keep,
                    queue="away",
                    quiet=timedelta(microseconds=1),
                )
        stage(application, "m.f", queue="away", idempotency_key="once", key=1)
        for queue in RULED:
            for key in ("acme", "other"):
                stage(application, "m.f", queue=queue, key=key)
    for queue, rules in RULED.items():
        query(
            place.url,
            f"INSERT INTO queues (queue, {', '.join(rules)}) VALUES ('{queue}', {', '.join(rules.values())})",
        )
    query(place.url, "UPDATE idempotency_keys SET expires_at = now() - interval '1 day'")
    query(place.url, f"DROP TABLE public.{day(2)}")
    settings = Settings(
        database_url=place.url_of("enqueuer"),
        redis_url=redis_url,
        namespace=NAMESPACE,
        forward_queues=frozenset({"away"}),
    )
    assert Daemon(settings).run_once() == 6 + 2 * len(RULED)
    assert query(place.url, "SELECT count(superseded_by) FROM finished_jobs") == [(2,)]
    assert query(place.url, "SELECT FROM idempotency_keys") == []
    query(place.url, "UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 s' WHERE id = 1")
    query(
        place.url,
        "UPDATE inflight_jobs SET next_run_at = now() - interval '1 s' WHERE id = 2 OR queue = ANY (%s)",
        [*RULED],
    )
    # The leader's lock is gone a moment after its connection.
    with place.connected("inspection") as reader:
        wait_until(lambda: queries.leader(reader) is None)
    assert Daemon(settings).run_once() == 2 + 2 * len(RULED)
    with place.connected("enqueuer") as leader:
        assert staged.truncate_idle(leader, -1) in (0, 1)
        assert waiting.seconds_to_next_scheduled(leader, if_due=0.1) is not None
    assert day(2) in [each.partition for each in _days(place)]
    assert runs(place) == 0


def test_jobs_that_wait_run_no_hostile_overload(hostile_place: Place) -> None:
    place = hostile_place
    with place.connected("application") as application:
        parent = stage(application, "m.f")
        child = stage(application, "m.f", after=parent, run_in=60)
        stage_many(
            application, "m.f", [(1,)], after=lambda _: parent, unique_key=str, quiet=timedelta(seconds=1)
        )
    with place.connected("worker") as worker:
        assert predecessors.read_results(worker, child) == {}
    assert query(place.url, "SELECT count(*) FROM job_edges") == [(2,)]
    assert runs(place) == 0


def test_a_worker_runs_no_hostile_overload(hostile_place: Place) -> None:
    place = hostile_place
    with place.connected("application") as application:
        ids = stage_many(application, "m.f", [(number,) for number in range(7)])
    with place.connected("enqueuer") as leader:
        staged.move(leader, ids, 0)
    with place.connected("worker") as worker:
        postgres.limit_session(worker, statement_seconds=10, lock_seconds=10)
        single = [claims.claim(worker, id_, worker="w", limits={}) for id_ in ids[:4]]
        held = [claim for claim in single if claim is not None]
        assert len(held) == 4
        assert finishes.finish(worker, held[0])
        assert outcomes.retry_later(worker, held[1], 1.0, {"type": "E"})
        assert outcomes.defer(worker, held[2], 60)
        assert outcomes.bury_claimed(
            worker,
            held[3],
            reason="failed",
            explanation="x",
            error={"type": "E"},
        )
        batch = claims.claim_many(worker, deliveries(worker, ids[4:]), worker="w", limits={})
        assert len(batch) == 3
        assert leases.extend_many(worker, batch)
        assert leases.release(worker, [batch[0]])
        assert claims.left_to_claim(worker, deliveries(worker, ids)) == {batch[0].id}
        assert finishes.finish_many(worker, batch[1:2]) == {batch[1].id}
        worker.execute("BEGIN")
        assert finishes.finish_and_commit(worker, batch[2])
    assert runs(place) == 0


def test_recording_undoable_and_undone_steps_runs_no_hostile_overload(hostile_place: Place) -> None:
    place = hostile_place
    with place.connected("application") as application:
        job_id = stage(application, "m.f")
    with place.connected("enqueuer") as leader:
        staged.move(leader, [job_id], 0)
    with place.connected("worker") as worker:
        _record(worker, job_id, Step("charge", "1", 0.1, '{"call": "m.undo", "as": "step"}'))
    query(place.url, "UPDATE staged_jobs SET scheduled_at = now(), matured_at = now()")
    with place.connected("enqueuer") as leader:
        staged.move(leader, [job_id + 1], 0)
    with place.connected("worker") as worker:
        claim = _record(worker, job_id + 1, Step("charge", "1", 0.1, undoes=(job_id, "charge")))
        assert steps.read_undoable(worker, claim, job_id) == []
    assert query(place.url, "SELECT job_id FROM job_steps") == [(job_id + 1,)]
    assert runs(place) == 0


def _record(worker: Connection, job_id: int, step: Step) -> Claim:
    claim = claims.claim(worker, job_id, worker="w", limits={})
    assert claim is not None
    statement = within(postgres.home_of(worker), steps.record(step))
    assert worker.execute(statement, steps.record_parameters(claim, step)).fetchall() == [(True,)]
    return claim


def test_inspection_and_the_owner_run_no_hostile_overload(hostile_place: Place, redis_url: str) -> None:
    place = hostile_place
    with place.connected("application") as application:
        ids = stage_many(application, "m.f", [(1,), (2,), (3,)])
    with place.connected("enqueuer") as leader:
        staged.move(leader, ids[:2], 0)
        # Which leader leads is asked for while one does.
        assert try_to_lead(leader) is not None
        with place.connected("inspection") as reader:
            assert system.read(reader).leader is not None
    with place.connected("worker") as worker:
        held = [claims.claim(worker, id_, worker="w", limits={}) for id_ in ids[:2]]
        assert held[0] is not None
        assert held[1] is not None
        finishes.finish(worker, held[0])
        outcomes.bury_claimed(worker, held[1], reason="failed", explanation="x")
    with place.connected("inspection") as reader, closing(Producer(redis_url, NAMESPACE)) as redis:
        assert system.read(reader, with_finished=True).finished == 1
        assert queries.jobs(reader, "dead", limit=1, queue="default")
        assert audit(reader, redis, patience_seconds=0).ok
    _rule_everything(place)
    with place.connected("inspection") as reader, closing(Producer(redis_url, NAMESPACE)) as redis:
        assert system.read(reader).queues["default"].waiting
        assert audit(reader, redis, patience_seconds=0).counts["finished"] == 1
        found = {explain(reader, redis, id_).finding.cause for id_ in [*range(7), 10**9]}
        assert found >= {"finished", "dead", "no_leader", "not_given_out"}
    with place.connected("enqueuer") as leader, closing(Producer(redis_url, NAMESPACE)) as redis:
        assert try_to_lead(leader)
        assert waiting_by_cause.count_waiting(leader, 10)
        with place.connected("inspection") as reader:
            while_led = [explain(reader, redis, id_).finding.cause for id_ in range(7)]
            assert {"order_dead", "gives_way"} <= set(while_led)
            query(place.url, "UPDATE queues SET on_dead = 'skip'")
            assert "order_dead" not in [explain(reader, redis, id_).finding.cause for id_ in range(7)]
            query(place.url, "UPDATE queues SET ordered = false, on_dead = 'hold'")
            assert [explain(reader, redis, id_) for id_ in range(7)]
            assert audit(reader, redis, patience_seconds=0).counts["finished"] == 1
    query(place.url, "DELETE FROM queues; DELETE FROM queue_pauses")
    query(place.url, "DELETE FROM staged_jobs WHERE unique_key IS NOT NULL")
    _do_all_that_owners_do(place)
    assert runs(place) == 0


def _do_all_that_owners_do(place: Place) -> None:
    with place.connected("owner") as owner:
        assert dead.revive(owner, Selection()) == 1
        today = next(each for each in finished.days(owner) if each.date == TODAY)
        assert finished.closed_days(owner) == []
        assert finished.remove_day(owner, today, finished.checksum(owner, today))
        other = finished.Day(finished.OTHER, TODAY)
        assert finished.remove_day(owner, other, finished.checksum(owner, other))
        with owner.transaction():
            finished.visible_transactions(owner)
        assert finished.next_transaction(owner)
        assert bulk.try_to_run(owner, "run")
        for name in ("run", "abandoned"):
            bulk.begin(owner, name, None)
        for columns in ("job_name", "quiet_seconds"):
            with bulk.staging(owner, "run", [columns]) as copying:
                copying.position = "later"
        bulk.begin(owner, "flow", None)
        flow = NewFlow(options={"name": "f"}, callbacks={"success": {"job_name": "m.f"}})
        with bulk.staging(owner, "flow", ["job_name", "node", "after"], flow=flow) as copying:
            copying.write(b'm.f,a,[]\nm.f,b,"[""a""]"\n', 2)
        assert finished.measure(owner, "job_edges", "child_id > 0")[0] > 0
        bulk.forget(owner, "abandoned")
        assert bulk.find(owner, "run") == bulk.Noted(0, None, "later", is_complete=False)


def _rule_everything(place: Place) -> None:
    """Give the queue all rules, a pause that does not apply, and jobs with keys."""
    query(
        place.url,
        "INSERT INTO queues (queue, running, running_per_key, rate, rate_per_key, fair, ordered) "
        "VALUES ('default', 5, 1, '1/h', '1/d', true, true)",
    )
    query(place.url, "INSERT INTO queue_pauses (queue) VALUES ('another')")
    query(place.url, "UPDATE dead_jobs SET key = 'acme'")
    query(
        place.url,
        "INSERT INTO staged_jobs (job_name, key, unique_key) VALUES ('m.f', 'acme', NULL), ('m.f', 'other', 'doc:42'), "
        "('m.f', 'third', 'doc:42')",
    )


def _days(place: Place) -> list[finished.Day]:
    with place.connected("inspection") as reader:
        return finished.days(reader)


_DROP_FUNCTIONS_UNDER_OUR_NAMES = """
DO $$ DECLARE it regprocedure; BEGIN
    SET LOCAL search_path = pg_catalog;
    FOR it IN SELECT oid FROM pg_proc WHERE proname::text ~ '^drain_' LOOP
        EXECUTE format('DROP FUNCTION %s', it);
    END LOOP;
END $$
"""


def test_a_foreign_function_is_not_transferred_to_the_owner(
    hostile_place: Place,
) -> None:
    with postgres.connect(hostile_place.url, "tests") as administrator:
        found = roles.installation_of(administrator)
    ours = [each for each in found.objects if each.kind == "FUNCTION"]
    assert {each.owner for each in found.objects} == {OWNER}
    assert len(ours) == len(functions(hostile_place))
    assert runs(hostile_place) == 0


def test_init_and_roles_run_no_hostile_overload(
    hostile_place: Place,
) -> None:
    place = hostile_place
    query(place.url, f"DROP OWNED BY {OWNER}")
    with pytest.raises(SchemaError, match="is not job-drain's"):
        schema.install(place.url)
    query(place.url, _DROP_FUNCTIONS_UNDER_OUR_NAMES)
    assert schema.install(place.url) == schema.VERSION
    with postgres.connect(place.url, "tests") as administrator:
        found = roles.installation_of(administrator)
        roles.apply(administrator, roles.statements(found, DEFAULT_NAMES, OWNER))
    with place.connected("application") as application:
        ids = stage_many(application, "m.f", [(1,)], queue="mail", run_at=datetime.now(UTC), tag="t")
        with pytest.raises(psycopg.errors.CheckViolation, match="queue_must_be_a_name"):
            application.execute("INSERT INTO staged_jobs (job_name, queue) VALUES ('m.f', 'no name')")
    with place.connected("enqueuer") as leader:
        staged.mature(leader, 10)
        staged.move(leader, ids, 0)
    with place.connected("worker") as worker:
        claim = claims.claim(worker, ids[0], worker="w", limits={})
        assert claim is not None
        assert finishes.finish(worker, claim)
    assert runs(place) == 0

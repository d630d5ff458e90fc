from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from drain import stage_many
from drain.database import postgres, schema
from drain.embedded import Services
from drain.errors import SchemaError, UnavailableError
from tests import jobs_in_batches
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    effects,
    environment,
    ids_in,
    leading,
    query,
    wait_until,
)

DESCRIPTION = """
SELECT table_name, column_name, data_type, is_nullable, column_default, NULL
FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL SELECT tablename, indexname, indexdef, NULL, NULL, NULL FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), NULL, NULL, NULL
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), NULL, NULL, NULL
    FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT proname, prosrc, NULL, NULL, NULL, NULL FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace
ORDER BY 1, 2, 3
"""


def check(database_url: str) -> None:
    with closing(postgres.connect(database_url, "test")) as connection:
        schema.check(connection)


def test_init_makes_a_database_that_passes_the_check(empty_database_url: str) -> None:
    assert schema.install(empty_database_url) == schema.VERSION

    check(empty_database_url)
    assert query(empty_database_url, "SELECT version FROM drain_schema") == [(schema.VERSION,)]


def test_a_second_init_changes_nothing(empty_database_url: str) -> None:
    schema.install(empty_database_url)
    query(empty_database_url, "INSERT INTO staged_jobs (job_name) VALUES ('m.f')")
    query(empty_database_url, "SELECT setval('drain_last_delivery', 7)")
    before = query(empty_database_url, DESCRIPTION)

    schema.install(empty_database_url)

    assert query(empty_database_url, DESCRIPTION) == before
    assert ids_in(empty_database_url, "staged_jobs") == [1]
    assert query(empty_database_url, "SELECT last_value FROM drain_last_delivery") == [(7,)]


def test_concurrent_inits_all_succeed(empty_database_url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        versions = list(pool.map(schema.install, [empty_database_url] * 6))

    assert versions == [schema.VERSION] * 6
    check(empty_database_url)


def test_an_init_that_fails_half_way_leaves_nothing_behind(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = schema.text()
    monkeypatch.setattr(schema, "text", lambda: f"{whole}; SELECT 1 / 0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        schema.install(empty_database_url)

    assert query(empty_database_url, "SELECT to_regclass('staged_jobs')") == [(None,)]


FOREIGN = {
    "table staged_jobs": "CREATE TABLE staged_jobs (id bigint)",
    "view finished_jobs": "CREATE VIEW finished_jobs AS SELECT 1",
    "materialized view dead_jobs": "CREATE MATERIALIZED VIEW dead_jobs AS SELECT 1",
    "table inflight_jobs": "CREATE TABLE inflight_jobs (id bigint) PARTITION BY RANGE (id)",
    "sequence drain_last_delivery": "CREATE SEQUENCE drain_last_delivery",
    "index staged_jobs_in_lanes": "CREATE TABLE theirs (id bigint); CREATE INDEX staged_jobs_in_lanes ON theirs (id)",
    "function drain_finish": "CREATE FUNCTION drain_finish(job bigint, token bigint) RETURNS boolean LANGUAGE sql "
    "AS 'SELECT true'",
    "function drain_wake_enqueuer": "CREATE FUNCTION drain_wake_enqueuer(text) RETURNS text LANGUAGE sql AS "
    "'SELECT $1'",
    "type bulk_runs": "CREATE DOMAIN bulk_runs AS text",
    "table finished_jobs_20990101": "CREATE TABLE finished_jobs_20990101 (id bigint)",
    "table drain_schema": "CREATE TABLE drain_schema (version text, applied_at timestamptz)",
}


@pytest.mark.parametrize("thing", FOREIGN)
def test_an_unrelated_object_with_one_of_our_names_is_left_alone(empty_database_url: str, thing: str) -> None:
    query(empty_database_url, FOREIGN[thing])
    before = catalog_of(empty_database_url)

    with pytest.raises(SchemaError, match=f"the {thing} ") as caught:
        schema.install(empty_database_url)

    assert "DRAIN_SCHEMA=jobs" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert catalog_of(empty_database_url) == before


def catalog_of(database_url: str) -> object:
    relations = (
        "SELECT oid, relname, relkind, xmin::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    )
    functions = "SELECT oid, proname, xmin::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    return [sorted(query(database_url, statement)) for statement in (relations, functions)]


def test_a_drain_schema_that_is_not_ours_is_rejected_by_every_program(empty_database_url: str) -> None:
    query(empty_database_url, "CREATE TABLE drain_schema (version text)")

    with pytest.raises(SchemaError, match="not job-drain's"):
        check(empty_database_url)


def test_a_drain_schema_without_a_version_is_reported(database_url: str) -> None:
    query(database_url, "DELETE FROM drain_schema")

    for use in (schema.install, check):
        with pytest.raises(SchemaError, match="drain_schema is empty"):
            use(database_url)


@pytest.mark.usefixtures("processes")
def test_everything_works_in_its_own_schema_despite_conflicting_tables(
    empty_database_url: str, redis_url: str
) -> None:
    query(empty_database_url, "CREATE TABLE staged_jobs (id bigint)")
    query(empty_database_url, "CREATE SCHEMA jobs")
    url = f"{empty_database_url}&options=-csearch_path%3Djobs"
    env = environment(url, redis_url, DRAIN_JOBS=jobs_in_batches.MODULE)

    with drain_command("init", env=env) as init:
        assert init.wait(PATIENCE_SECONDS) == 0
    jobs_in_batches.create_effects(url)
    with leading(env), psycopg.connect(url) as application:
        ids = stage_many(application, jobs_in_batches.note_in_transaction, [("one",), ("two",)])
        application.commit()
        with drain_command("work", env=env):
            wait_until(lambda: ids_in(empty_database_url, "jobs.finished_jobs") == ids, PATIENCE_SECONDS)
    with drain_command("audit", env=env) as audit:
        assert audit.wait(PATIENCE_SECONDS) == 0

    assert sorted(effects(url)) == ["one", "two"]
    assert query(
        empty_database_url, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    ) == [("staged_jobs",)]


def test_a_search_path_without_an_existing_schema_is_reported_on_one_line(empty_database_url: str) -> None:
    with pytest.raises(SchemaError, match="names no existing schema") as caught:
        schema.install(f"{empty_database_url}&options=-csearch_path%3Djobs")

    assert "\n" not in str(caught.value)


def test_a_read_only_database_is_reported_on_one_line(empty_database_url: str, database_url: str) -> None:
    setting = "options=-cdefault_transaction_read_only%3Don"
    with pytest.raises(SchemaError, match="is read-only") as caught:
        schema.install(f"{empty_database_url}&{setting}")

    assert "\n" not in str(caught.value)
    assert schema.install(f"{database_url}&{setting}") == schema.VERSION


def test_concurrent_inits_succeed_under_any_default_isolation(empty_database_url: str) -> None:
    url = f"{empty_database_url}&options=-cdefault_transaction_isolation%3Dserializable"
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(schema.install, [url] * 4)) == [schema.VERSION] * 4


def test_a_database_without_the_schema_is_refused_with_advice(
    empty_database_url: str,
) -> None:
    with pytest.raises(SchemaError, match="drain init"):
        check(empty_database_url)


def test_a_newer_schema_is_refused_and_left_alone(database_url: str) -> None:
    query(database_url, "INSERT INTO drain_schema (version) VALUES (%s)", schema.VERSION + 1)
    before = query(database_url, DESCRIPTION)

    with pytest.raises(SchemaError, match="upgrade job-drain"):
        check(database_url)
    with pytest.raises(SchemaError, match="upgrade job-drain"):
        schema.install(database_url)

    assert query(database_url, DESCRIPTION) == before


def test_an_older_schema_is_refused_until_init_has_run(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute((ROOT / "migrations" / "0001_first.sql").read_bytes())
    with pytest.raises(SchemaError, match="drain init") as caught:
        check(empty_database_url)
    assert "\n" not in str(caught.value)

    schema.install(empty_database_url)

    check(empty_database_url)


def test_an_unreachable_server_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="cannot be used"):
        schema.install("postgresql://127.0.0.1:1/nothing")


@contextmanager
def a_role_without_rights(database_url: str) -> Iterator[str]:
    role = sql.Identifier("drain_test_reader")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        connection.execute("REVOKE CREATE ON SCHEMA public FROM public")
        try:
            yield database_url.replace("postgres@", "drain_test_reader@", 1)
        finally:
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_role_that_may_not_create_tables_gets_one_line(empty_database_url: str) -> None:
    with (
        a_role_without_rights(empty_database_url) as url,
        pytest.raises(SchemaError, match="may not create the tables, or change them") as caught,
    ):
        schema.install(url)

    assert "\n" not in str(caught.value)


def test_a_role_that_may_not_change_the_tables_gets_one_line(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute((ROOT / "migrations" / "0001_first.sql").read_bytes())
        connection.execute("GRANT SELECT ON drain_schema TO PUBLIC")
    with (
        a_role_without_rights(empty_database_url) as url,
        pytest.raises(
            SchemaError, match=r"create the tables, or change them: .* nothing was changed"
        ) as caught,
    ):
        schema.install(url)

    assert "\n" not in str(caught.value)


@pytest.fixture
def sql_ascii_url(servers: Services) -> Iterator[str]:
    """A database that takes any bytes for text."""
    name, administrator = f"test_{uuid4().hex}", servers.postgres.url_of("postgres")
    query(administrator, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING SQL_ASCII LOCALE 'C'")
    yield servers.postgres.url_of(name)
    query(administrator, f"DROP DATABASE {name} WITH (FORCE)")


def test_a_sql_ascii_database_is_refused_by_init_and_every_program(
    sql_ascii_url: str,
) -> None:
    for use in (schema.install, check):
        with pytest.raises(SchemaError, match="create it with ENCODING 'UTF8'") as caught:
            use(sql_ascii_url)
        assert "\n" not in str(caught.value)

    assert query(sql_ascii_url, "SELECT to_regclass('staged_jobs')") == [(None,)]


@pytest.mark.parametrize("ahead", [-1, 31, 2_147_483_647, None])
def test_partitions_are_made_for_a_month_ahead_at_most(database_url: str, ahead: int | None) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="0 to 30 days"):
        query(database_url, "SELECT drain_make_days(%s)", ahead)


def test_a_partition_creators_temporary_tables_cannot_replace_ours(database_url: str) -> None:
    days = (
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'public.finished_jobs'::regclass"
    )
    before = query(database_url, days)
    with a_role_without_rights(database_url) as url, psycopg.connect(url, autocommit=True) as connection:
        query(database_url, "GRANT EXECUTE ON FUNCTION drain_make_days(integer) TO drain_test_reader")
        connection.execute("CREATE TEMPORARY TABLE finished_jobs (id bigint)")
        connection.execute("CREATE TEMPORARY TABLE finished_jobs_other (id bigint, finished_at timestamptz)")
        made = connection.execute("SELECT drain_make_days(30)").fetchone()
        connection.execute("DROP TABLE pg_temp.finished_jobs, pg_temp.finished_jobs_other")
        query(database_url, "REVOKE EXECUTE ON FUNCTION drain_make_days(integer) FROM drain_test_reader")

    assert made is not None
    assert made[0] > 0
    assert len(query(database_url, days)) == len(before) + made[0]

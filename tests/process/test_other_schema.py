"""All of job-drain in a schema of its own, beside an application's tables, some of which have names of ours."""

import json
from contextlib import closing

import psycopg
import pytest
import sqlalchemy
from click.testing import CliRunner, Result
from sqlalchemy.orm import Session

from drain import cancel, queues, schedule, stage, stage_many, unschedule, urls
from drain.__main__ import main
from drain.config import Settings
from drain.database import postgres, refusals, roles, schema
from drain.errors import ConfigError, SchemaError
from drain.pipeline.datasources import adbc, options
from drain.tables import bulk
from drain.workers.context.connection_cache import bare, close_all, of_session
from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, drain_command, environment, query, stage_jobs, wait_until
from tests.poolers import SmallPooler

# Names of ours that an application may have taken in `public`.
THEIRS = ("staged_jobs", "crons", "queues")
FOREIGN = "; ".join(f"CREATE TABLE {name} (id bigint)" for name in THEIRS)


@pytest.fixture
def plain_url(empty_database_url: str) -> str:
    """A database in whose schema `public` the application has tables, and job-drain none."""
    query(empty_database_url, FOREIGN)
    return empty_database_url


@pytest.fixture
def env(plain_url: str, redis_url: str) -> dict[str, str]:
    found = environment(plain_url, redis_url, DRAIN_SCHEMA="jobs", DRAIN_JOBS=jobs.MODULE)
    del found["DRAIN_NAMESPACE"]
    return found


@pytest.fixture
def installed(plain_url: str, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of connections of an application, whose search_path is as ever."""
    assert run("init", env=env).output == f"the schema is installed, version {schema.VERSION}\n"
    monkeypatch.setenv("DRAIN_SCHEMA", "jobs")
    return plain_url


def run(*words: str, env: dict[str, str]) -> Result:
    result = CliRunner().invoke(main, words, env=env)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def in_public(url: str) -> set[str]:
    """Relations and functions in `public`."""
    return {
        name
        for (name,) in query(
            url,
            "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace UNION ALL "
            "SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
        )
    }


@pytest.mark.usefixtures("processes")
def test_jobs_run_in_their_own_schema_without_a_trace_in_public(
    installed: str, plain_url: str, env: dict[str, str]
) -> None:
    jobs.create_effects(plain_url)
    before = in_public(plain_url)
    with (
        drain_command("run", "--poll-seconds", "60", "--metrics-port", "0", env=env) as leader,
        drain_command("work", "--processes", "1", env=env) as worker,
    ):
        wait_until(lambda: leader.events("leading") and worker.events("started"), PATIENCE_SECONDS)
        engine = sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(installed), poolclass=sqlalchemy.NullPool
        )
        with Session(engine) as session, session.begin():
            stage(session, jobs.note_in_transaction, ["session"])
            stage(session, jobs.note_in_transaction, ["once"], idempotency_key="order 1")
        with psycopg.connect(installed) as connection:
            stage_many(connection, jobs.note_in_transaction, [("many",), ("more",)])
            stage(connection, jobs.note, ["unique"], unique_key="one")
        wait_until(
            lambda: query(plain_url, "SELECT count(*) FROM jobs.finished_jobs") == [(5,)], PATIENCE_SECONDS
        )
        # Long before the enqueuer would have looked by itself.
        assert leader.poll() is worker.poll() is None
        for words in (["status"], ["list", "finished"], ["queue", "list"], ["cron", "list"], ["audit"]):
            result = run(*words, env=env)
            assert result.exit_code == 0, result.output
        for row in json.loads(run("list", "finished", "--json", env=env).stdout):
            assert run("show", str(row["id"]), env=env).exit_code == 0

    assert sorted(jobs.effects(plain_url)) == ["many", "more", "once", "session", "unique"]
    assert in_public(plain_url) == before
    assert query(plain_url, "SELECT count(*) FROM pg_class WHERE relname ~ '^finished_jobs_[0-9]'")[0][0] > 0


def test_everything_that_an_application_calls_finds_the_tables(installed: str, plain_url: str) -> None:
    with psycopg.connect(installed) as connection:
        waiting = stage(connection, "m.f", [1], key="customer 1")
        queues.set(connection, "default", running=3)
        queues.pause(connection, "default", key="customer 1")
        schedule(connection, "nightly", job="m.f", cron="0 3 * * *")
        assert unschedule(connection, "nightly")
        assert queues.resume(connection, "default", key="customer 1")
        assert [rules.queue for rules in queues.list(connection)] == ["default"]
        assert cancel(connection, waiting)

    assert query(plain_url, "SELECT count(*) FROM jobs.dead_jobs") == [(1,)]
    assert query(plain_url, "SELECT count(*) FROM jobs.queues") == [(1,)]


def test_a_job_finds_its_applications_tables_as_well_as_ours(installed: str, plain_url: str) -> None:
    url = urls.in_schema(plain_url, "jobs")
    found = "SELECT current_schemas(false)::text[], to_regclass('staged_jobs')::text"
    try:
        with bare(url) as connection:
            assert connection.execute(found).fetchone() == (["jobs", "public"], "staged_jobs")
        with of_session(url) as session_connection:
            row = session_connection.exec_driver_sql(found).one()
            assert tuple(row) == (["jobs", "public"], "staged_jobs")
    finally:
        close_all()


def test_our_own_connections_see_no_other_schema(installed: str, plain_url: str) -> None:
    with closing(postgres.connect(urls.in_schema(plain_url, "jobs"), "test")) as connection:
        assert connection.execute("SELECT current_schemas(false)::text[]").fetchone() == (["jobs"],)


def test_a_schema_without_our_tables_does_not_use_those_of_another(database_url: str, redis_url: str) -> None:
    env = environment(database_url, redis_url)

    result = run("status", "--schema", "elsewhere", env=env)

    assert result.exit_code == 1
    assert "the database has no job-drain schema; run `drain init` first" in result.output


def test_an_older_version_in_the_schema_is_upgraded_there(plain_url: str, env: dict[str, str]) -> None:
    url = urls.in_schema(plain_url, "jobs")
    query(plain_url, "CREATE SCHEMA jobs")
    with psycopg.connect(url) as connection:
        connection.execute(schema.script(version=1).encode())
        connection.execute("INSERT INTO staged_jobs (job_name, job_args) VALUES ('m.f', '[]')")
    before = in_public(plain_url)

    assert run("init", env=env).exit_code == 0

    assert query(plain_url, "SELECT max(version) FROM jobs.drain_schema") == [(schema.VERSION,)]
    assert query(plain_url, "SELECT id FROM jobs.staged_jobs") == [(1,)]
    assert query(plain_url, "SELECT count(*) FROM pg_constraint WHERE NOT convalidated") == [(0,)]
    assert in_public(plain_url) == before


def test_the_printed_init_creates_the_schema_and_its_contents(plain_url: str, env: dict[str, str]) -> None:
    printed = run("init", "--print", env=env).stdout

    with psycopg.connect(plain_url, autocommit=True) as connection:
        connection.execute(printed.encode())

    assert run("status", env=env).exit_code == 0
    assert in_public(plain_url) == set(THEIRS)


def test_init_uses_an_existing_schema_it_may_not_create(plain_url: str, env: dict[str, str]) -> None:
    query(plain_url, "CREATE ROLE owner_of_jobs LOGIN; CREATE SCHEMA jobs AUTHORIZATION owner_of_jobs")
    url = plain_url.replace("postgres@", "owner_of_jobs@", 1)
    try:
        refused = run("init", "--schema", "others", env=env | {"DRAIN_DATABASE_URL": url})
        assert refused.exit_code == 1
        assert "the role may not create the tables" in refused.output
        assert run("init", env=env | {"DRAIN_DATABASE_URL": url}).exit_code == 0
    finally:
        query(plain_url, "DROP OWNED BY owner_of_jobs; DROP ROLE owner_of_jobs")


def test_a_second_schema_in_one_database_is_refused_on_one_line(
    installed: str, plain_url: str, env: dict[str, str]
) -> None:
    result = run("init", "--schema", "more", env=env)

    assert result.exit_code == 1
    assert "the schema jobs of this database already has job-drain's tables" in result.output
    assert "DRAIN_SCHEMA=jobs" in result.output
    assert result.output.count("\n") == 1
    assert query(plain_url, "SELECT to_regnamespace('more')") == [(None,)]
    query(plain_url, "; ".join(f"DROP TABLE {name}" for name in THEIRS))
    with pytest.raises(SchemaError, match="already has job-drain's tables"):
        schema.install(plain_url)


def test_the_rights_of_roles_are_granted_in_the_schema(installed: str, env: dict[str, str]) -> None:
    printed = run("roles", env=env).stdout

    assert 'ON SCHEMA "jobs" TO' in printed
    assert 'SET search_path = "jobs"' in printed
    assert "public." not in printed.replace("FROM PUBLIC", "")
    with closing(postgres.connect(urls.in_schema(installed, "jobs"), "test")) as connection:
        assert roles.installation_of(connection).schema == "jobs"


def test_the_option_wins_over_the_variable_and_names_the_namespace(
    plain_url: str, env: dict[str, str]
) -> None:
    assert run("init", "--schema", "work", env=env).exit_code == 0

    assert query(plain_url, "SELECT to_regclass('work.staged_jobs') IS NOT NULL") == [(True,)]
    settings = Settings.from_environment(env)
    assert settings.namespace.endswith("-jobs")
    assert settings.schema == "jobs"


def test_bulk_work_reads_and_writes_in_the_schema(
    installed: str, plain_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("adbc_driver_manager")
    monkeypatch.setenv("DRAIN_DATABASE_URL", plain_url)
    monkeypatch.setenv("DRAIN_SCHEMA", "jobs")
    url = options.database_url({})
    stage_jobs(url, 3)

    with adbc.connect(url, "test") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM staged_jobs")
        assert cursor.fetchone() == (3,)
    with closing(postgres.connect(url, "test")) as owner:
        bulk.begin(owner, "run", None)
        with bulk.staging(owner, "run", ["job_name"], rows_per_second=1) as copying:
            copying.write(b"m.f\n", 1)
    assert query(plain_url, "SELECT count(*) FROM jobs.staged_jobs") == [(4,)]


def test_a_pooler_that_ignores_the_schema_is_reported_before_any_query(
    database_url: str, installed: str, plain_url: str
) -> None:
    with SmallPooler(plain_url, "transaction") as pooler:
        url = urls.in_schema(pooler.url, "jobs")
        with pytest.raises(ConfigError, match=r"ALTER ROLE \.\.\. SET search_path = jobs") as caught:
            postgres.connect(url, "test")
    assert "\n" not in str(caught.value)


def test_a_pooler_that_refuses_the_schema_is_reported(
    plain_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise psycopg.OperationalError("FATAL:  unsupported startup parameter: options")

    monkeypatch.setattr(postgres, "_connect", refuse)
    monkeypatch.setattr(refusals, "_take_no_settings", set())

    with pytest.raises(ConfigError, match="takes no search_path from clients"):
        postgres.connect(urls.in_schema(plain_url, "jobs"), "test")


def test_the_roles_search_path_works_through_a_pooler(installed: str, plain_url: str, redis_url: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(plain_url)["dbname"]
    query(plain_url, f"ALTER DATABASE {name} SET search_path = jobs, public")
    with SmallPooler(plain_url, "transaction") as pooler:
        assert run("status", env=environment(pooler.url, redis_url, DRAIN_SCHEMA="")).exit_code == 0

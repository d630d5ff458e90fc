"""One PostgreSQL and one Redis per test run; a database of its own for each test."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg.sql import SQL, Identifier
from redis import Redis
from xdist.scheduler import LoadFileScheduling

from drain import health, hooks, urls
from drain.embedded import Services, services
from drain.embedded.binaries import find_postgres, find_redis
from drain.errors import EmbeddedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = "tests/spark/"
# Takes as long as all other files of Spark together.
ARCHIVE = "tests/spark/test_archive.py"
MEMORY = Path("/dev/shm")
ROOM_IN_MEMORY = 2 * 1024**3
# The verdicts of drills and soak compare the time of a commit with that of the job's claim.
POSTGRES = {"track_commit_timestamp": "on"}


# The time that an example takes, or that making it takes, says nothing on a busy machine.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Schema of the tables in every database that tests work on: `DRAIN_TEST_SCHEMA=jobs pytest tests/integration`.
SCHEMA = os.environ.pop("DRAIN_TEST_SCHEMA", "")


# The day on which a template was made, by its name.
_MADE_ON: dict[str, date] = {}


# Whoever starts the tests in the background of a script has them ignore Ctrl-C and SIGQUIT, and so would every process
# that they start: each PgBouncer would be waited for in vain, and killed 10 s later.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


# What Spark does here is over before compiling it well has paid off: a third of the time on two cores.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# No session makes class data here, which takes more processor time than a test.
os.environ["XDG_CACHE_HOME"] = "/dev/null"


# pytest-xdist names a width in it, which is no terminal's.
os.environ.pop("COLUMNS", None)
# They would lead the tests' clients to a server of whoever runs them.
for variable in [name for name in os.environ if name.startswith("PG")]:
    del os.environ[variable]


# What takes longest, the longest first. Whoever begins with them last keeps everybody waiting; xdist itself begins with
# the files of the most tests, however short those are.
LONGEST = (
    ARCHIVE,
    SPARK,
    *(
        f"tests/integration/test_{name}.py"
        for name in (
            *(
                "workers",
                "stalled_servers",
                "drills",
                "batches",
                "rq_tools",
                "plain_rq_processes",
                "plain_rq_jobs",
                "crash_points",
                "demo",
                "poolers",
            ),
            *(
                "job_transactions",
                "query_plans",
                "leases",
                "audit",
                "stock_server",
                "misfortunes",
                "neighbours",
            ),
        )
    ),
)


class Shares(LoadFileScheduling):  # type: ignore[misc]
    """With several processes, each file is one's. Those of Spark are two's, each with one session for its half."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return SPARK if file.startswith(SPARK) and file != ARCHIVE else file

    def _assign_work_unit(self, node: Any) -> None:
        longest = next((scope for scope in LONGEST if scope in self.workqueue), None)
        if longest:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


def pytest_configure(config: pytest.Config) -> None:
    """Servers that are named and not there are one line, rather than an error of each test."""
    try:
        find_postgres(None)
        find_redis(None)
    except EmbeddedError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares:
    """Whatever way of dividing the tests was asked for, this is the one."""
    return Shares(config, log)


@pytest.fixture(autouse=True)
def no_hook_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without hooks, and undo what a test registers; those of telemetry do nothing until they are wanted."""
    for kind in ("around_hooks", "stage_hooks", "finish_hooks", "dead_hooks", "producers"):
        monkeypatch.setattr(hooks, kind, ())
    for kind in ("unhealthy_hooks", "recovery_hooks"):
        monkeypatch.setattr(health, kind, ())
    yield
    if (telemetry := sys.modules.get("drain.telemetry.opentelemetry")) is not None:
        instrumentor = telemetry.DrainInstrumentor()
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()


@pytest.fixture(scope="session")
def temporary_directory() -> str:
    """Where servers put their data: in memory if there is room.

    A new database is 300 new files, for which some disks take a quarter of a second.
    """
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_IN_MEMORY
    return str(MEMORY) if roomy else tempfile.gettempdir()


@pytest.fixture(scope="session")
def servers(temporary_directory: str) -> Iterator[Services]:
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", temporary_directory)
            running = stack.enter_context(services(durable=False, postgres_settings=POSTGRES))
        yield running


@pytest.fixture(scope="session")
def template(servers: Services) -> str:
    from drain.database import schema

    name = "template_drain"
    with _administrator(servers) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    schema.install(_url(servers, name))
    _MADE_ON[name] = datetime.now(UTC).date()
    return name


@pytest.fixture
def database_url(servers: Services, template: str) -> Iterator[str]:
    with _database(servers, template) as url:
        yield url


@pytest.fixture
def other_database_url(servers: Services, template: str) -> Iterator[str]:
    """A second database with an installation of its own; all others here have the template's."""
    with _database(servers, template) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE drain_state SET installation = gen_random_uuid()")
        yield url


@pytest.fixture
def empty_database_url(servers: Services) -> Iterator[str]:
    with _database(servers, "template1") as url:
        if SCHEMA:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(SCHEMA)))
        yield url


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the whole run, which tries a task three times; commands that are called here use it too."""
    from pipeline import datasources
    from pipeline.session import session

    # Queries on a few rows are over before compiling them has paid off; programs of their own compile as usual.
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
    }
    with session("local[2,3]", settings) as started:
        datasources.register(started)
        yield started


@pytest.fixture
def redis_url(servers: Services) -> str:
    with Redis.from_url(servers.redis_url) as client:
        client.flushall()
    return servers.redis_url


@contextmanager
def _database(servers: Services, template: str) -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    create = SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template))
    with _administrator(servers) as connection:
        connection.execute(create)
        if SCHEMA:
            # As the roles of an application would have it: these connections have no setting of ours.
            path = SQL("ALTER DATABASE {} SET search_path = {}, public")
            connection.execute(path.format(Identifier(name), Identifier(SCHEMA)))
    _bring_up_to_today(_url(servers, name), template)
    try:
        yield _url(servers, name)
    finally:
        with _administrator(servers) as connection:
            _let_backends_leave(connection, name)
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def _url(servers: Services, name: str) -> str:
    url = servers.postgres.url_of(name)
    return urls.in_schema(url, SCHEMA) if SCHEMA else url


def _bring_up_to_today(database_url: str, template: str) -> None:
    """Give a copy the partitions of today where midnight, by UTC, has passed since the template was made."""
    day = _MADE_ON.get(template, date.max)
    if day >= datetime.now(UTC).date():
        return
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SELECT drain_make_days(3)")
        connection.execute(f"DROP TABLE finished_jobs_{day:%Y%m%d}".encode())


def _let_backends_leave(connection: psycopg.Connection, database: str) -> None:
    # DROP sleeps for 100 ms when it finds one, though they leave within 2 ms of the disconnect.
    busy = "SELECT FROM pg_stat_activity WHERE datname = %s"
    deadline = time.monotonic() + 0.05
    while connection.execute(busy, [database]).rowcount and time.monotonic() < deadline:
        time.sleep(0.001)


@contextmanager
def _administrator(servers: Services) -> Iterator[psycopg.Connection]:
    # Connected anew each time, since a test may have restarted the server in between.
    with psycopg.connect(servers.postgres.url_of("postgres"), autocommit=True) as connection:
        yield connection

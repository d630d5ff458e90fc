"""Behind a pooler that shares sessions nobody leads, and everybody else works as ever."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeAlias

import psycopg
import pytest
import sqlalchemy
from click.testing import CliRunner

from drain import stage, stage_many
from drain.__main__ import main
from drain.config import Settings
from drain.database import pooler as session, postgres, schema
from drain.database.postgres import Connection
from drain.errors import ConfigError, UnavailableError
from drain.workers.entry import Worker
from tests import jobs_for_tests as jobs
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    effects,
    environment,
    ids_in,
    leading,
    new_enqueuer,
    pushed_jobs,
    query,
    stage_jobs,
    wait_until,
)
from tests.poolers import PGBOUNCER, Order, PgBouncer, SmallPooler
from tests.proxy import proxied

NewPooler: TypeAlias = "type[PgBouncer] | type[SmallPooler]"

needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer is installed")
every_pooler = pytest.mark.parametrize(
    "pooler", [pytest.param(PgBouncer, marks=needs_pgbouncer), SmallPooler], ids=["pgbouncer", "small"]
)

LOCKS = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785684580"
OF_A_SESSION = """
SELECT name FROM pg_settings WHERE setting <> reset_val AND name IN (
    'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')
UNION ALL SELECT name FROM pg_prepared_statements
UNION ALL SELECT locktype FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
"""


def require_own_session(url: str) -> None:
    with closing(postgres.connect(url, "test")) as connection, postgres.time_limit(connection, 20):
        session.require_own_session(connection, url)


@contextmanager
def all_in_use(pooler: SmallPooler, size: int) -> Iterator[None]:
    """Every session that the pooler may have is in a transaction of somebody else."""
    with ExitStack() as others:
        for _ in range(size):
            other = others.enter_context(psycopg.connect(pooler.url))
            other.execute("SELECT 1")
        yield


@pytest.mark.parametrize("order", ["last", "first"])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 20])
def test_shared_sessions_are_detected(database_url: str, size: int, order: Order) -> None:
    with SmallPooler(database_url, "transaction", size=size, order=order) as pooler:
        with all_in_use(pooler, size):
            pass
        with pytest.raises(ConfigError, match="shares sessions"):
            require_own_session(pooler.url)


def test_several_poolers_behind_one_address_are_detected(database_url: str) -> None:
    with (
        SmallPooler(database_url, "transaction", pools=4) as pooler,
        pytest.raises(ConfigError, match="shares sessions"),
    ):
        require_own_session(pooler.url)


@pytest.mark.parametrize("size", [1, 4, 20])
@every_pooler
def test_a_dedicated_session_is_not_mistaken_for_a_shared_one(
    database_url: str, pooler: NewPooler, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_WAIT_SECONDS", 0.2)
    with pooler(database_url, "session", size=size) as running:
        require_own_session(running.url)


def test_a_fully_used_pooler_is_detected_once_a_session_is_free(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_WAIT_SECONDS", 0.2)
    dial = postgres.dial
    with SmallPooler(database_url, "transaction", size=1) as pooler, ExitStack() as others:

        def dial_while_all_are_in_use(url: str, name: str) -> Connection:
            other = others.enter_context(closing(dial(url, "other")))
            other.execute("BEGIN")

            def end_when_all_wait() -> None:
                wait_until(lambda: pooler.waiting == 2)
                other.execute("COMMIT")

            ending = threading.Thread(target=end_when_all_wait)
            ending.start()
            # Ends before the connection is closed: the answer to COMMIT may come after the test's own.
            others.callback(ending.join)
            return dial(url, name)

        with closing(postgres.connect(pooler.url, "test")) as connection:
            monkeypatch.setattr(postgres, "dial", dial_while_all_are_in_use)
            with pytest.raises(ConfigError, match="shares sessions"):
                session.require_own_session(connection, pooler.url)


def test_connecting_through_a_full_pooler_times_out(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "FIRST_ANSWER_SECONDS", 0.2)
    with (
        SmallPooler(database_url, "transaction", size=1) as pooler,
        all_in_use(pooler, 1),
        pytest.raises(UnavailableError),
    ):
        postgres.connect(pooler.url, "test")


def test_a_transparent_proxy_is_not_mistaken_for_a_pooler(database_url: str) -> None:
    with proxied(database_url) as (_, through):
        for url in (through, database_url):
            with closing(postgres.connect(url, "test")) as connection:
                assert not postgres.is_pooled(connection)
                session.require_own_session(connection, url)
                postgres.limit_session(connection, statement_seconds=7, lock_seconds=3)
                assert connection.execute("SHOW statement_timeout").fetchone() == ("7s",)


@pytest.mark.parametrize("once", [False, True], ids=["daemon", "once"])
@pytest.mark.parametrize(
    ("pooler", "mode"),
    [
        pytest.param(PgBouncer, "transaction", marks=needs_pgbouncer),
        pytest.param(PgBouncer, "statement", marks=needs_pgbouncer),
        (SmallPooler, "transaction"),
    ],
)
def test_an_enqueuer_refuses_a_pooler_that_shares_sessions(
    database_url: str, redis_url: str, pooler: NewPooler, mode: str, once: bool
) -> None:
    stage_jobs(database_url)
    with pooler(database_url, mode) as running:  # type: ignore[arg-type]
        words = ["--once"] if once else ["--metrics-port", "0"]
        with drain_command("run", *words, env=environment(running.url, redis_url)) as command:
            assert command.wait(PATIENCE_SECONDS) == 1
            (line,) = command.output.splitlines()
        assert line.startswith("Error: ")
        assert "transaction or statement mode" in line
        assert "PostgreSQL itself, or at a pool in session mode" in line
        assert not query(database_url, LOCKS)
        assert not pushed_jobs(redis_url)


@every_pooler
def test_an_enqueuer_leads_through_a_pool_in_session_mode(
    database_url: str, redis_url: str, pooler: NewPooler
) -> None:
    with pooler(database_url, "session") as running, leading(environment(running.url, redis_url)):
        ids = stage_jobs(database_url, 3)
        wait_until(lambda: pushed_jobs(redis_url) == ids)
        ids += stage_jobs(database_url, 3)
        wait_until(lambda: pushed_jobs(redis_url) == ids)


@needs_pgbouncer
def test_a_leader_whose_pooler_is_restarted_in_another_mode_ends(database_url: str, redis_url: str) -> None:
    with PgBouncer(database_url, "session") as pooler, leading(environment(pooler.url, redis_url)) as process:
        pooler.stop()
        wait_until(lambda: process.events("down"))
        pooler.mode = "transaction"
        pooler.start()

        assert process.wait(PATIENCE_SECONDS) == 1
        assert process.output.splitlines()[-1].startswith("Error: ")
        assert not query(database_url, LOCKS)


@every_pooler
def test_workers_that_outnumber_their_sessions_finish_all_jobs(
    database_url: str, redis_url: str, pooler: NewPooler
) -> None:
    jobs.create_effects(database_url)
    told = {"DRAIN_JOBS": jobs.MODULE, "PYTHONPATH": str(ROOT)}
    with (
        pooler(database_url, "transaction", size=2) as running,
        leading(environment(database_url, redis_url)),
        ExitStack() as workers,
    ):
        for _ in range(3):
            workers.enter_context(drain_command("work", env=environment(running.url, redis_url, **told)))
        with psycopg.connect(database_url) as connection:
            ids = stage_many(connection, jobs.record, [(f"job {number}",) for number in range(35)])
            ids += stage_many(connection, jobs.fail_times, [(f"retry {number}", 1) for number in range(5)])
            ids += jobs.record_in_transaction.stage_many(connection, [(f"own {n}",) for n in range(10)])
        wait_until(lambda: ids_in(database_url, "finished_jobs") == ids, seconds=PATIENCE_SECONDS)

    assert len(effects(database_url)) == 35 + 2 * 5 + 10


@every_pooler
def test_every_command_works_through_shared_sessions(
    empty_database_url: str, redis_url: str, pooler: NewPooler
) -> None:
    with pooler(empty_database_url, "transaction", size=2) as running:
        env = environment(running.url, redis_url, DRAIN_JOBS=jobs.MODULE)

        def drain(*words: str) -> str:
            result = CliRunner().invoke(main, words, env=env)
            assert result.exit_code == 0, result.output
            return result.stdout

        drain("init")
        drain("init")
        jobs.create_effects(empty_database_url)
        (job_id,) = stage_jobs(empty_database_url, job=jobs.exit_the_process.job_name)
        with new_enqueuer(empty_database_url, redis_url) as enqueuer:
            enqueuer.drain()
        assert json.loads(drain("status", "--json"))["inflight"] == 1
        with drain_command("work", "--burst", env=env) as worker:
            assert worker.wait(PATIENCE_SECONDS) == 0
        assert [job["id"] for job in json.loads(drain("list", "dead", "--json"))] == [job_id]
        assert json.loads(drain("show", str(job_id), "--json"))["state"] == "dead"
        drain("audit")
        drain("dead", "retry", "--all", "--yes")
        assert json.loads(drain("status", "--json"))["staged"] == 1


@every_pooler
def test_an_upgrade_works_through_shared_sessions_and_leaves_nothing_behind(
    empty_database_url: str, pooler: NewPooler
) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(schema.script(version=1).encode())
    with pooler(empty_database_url, "transaction", size=1) as running:
        assert schema.install(running.url) == schema.VERSION
        assert query_through(running.url, OF_A_SESSION) == []


@every_pooler
def test_workers_and_commands_leave_nothing_behind_in_a_shared_session(
    database_url: str, redis_url: str, pooler: NewPooler
) -> None:
    with pooler(database_url, "transaction", size=1) as running:
        worker = Worker(Settings(database_url=running.url))
        for number in range(10):
            assert worker.execute(number) == "refused"
        result = CliRunner().invoke(main, ["status"], env=environment(running.url, redis_url))
        assert result.exit_code == 0, result.output
        worker.close()

        assert query_through(running.url, OF_A_SESSION) == []


def query_through(url: str, statement: str) -> list[tuple[str, ...]]:
    with psycopg.connect(url, prepare_threshold=None) as connection:
        return connection.execute(statement.encode()).fetchall()


def test_a_dedicated_session_through_a_pooler_has_its_time_limits(database_url: str) -> None:
    with (
        SmallPooler(database_url, "session") as pooler,
        closing(postgres.connect(pooler.url, "test")) as connection,
    ):
        session.require_own_session(connection, pooler.url)
        postgres.limit_session(connection, statement_seconds=7, lock_seconds=3)
        assert connection.execute("SHOW statement_timeout").fetchone() == ("7s",)


def psycopg_as_it_comes(url: str) -> psycopg.Connection:
    return psycopg.connect(url)


def sqlalchemy_that_prepares_nothing(url: str) -> sqlalchemy.Connection:
    url = url.replace("postgresql:", "postgresql+psycopg:")
    return sqlalchemy.create_engine(url, connect_args={"prepare_threshold": None}).connect()


@pytest.mark.parametrize("connect", [psycopg_as_it_comes, sqlalchemy_that_prepares_nothing])
@every_pooler
def test_an_application_stages_through_shared_sessions(
    database_url: str,
    pooler: NewPooler,
    connect: Callable[[str], psycopg.Connection | sqlalchemy.Connection],
) -> None:
    with (
        pooler(database_url, "transaction", size=1) as running,
        closing(connect(running.url)) as one,
        closing(connect(running.url)) as other,
    ):
        ids: list[int] = []
        for number in range(20):
            for connection in (one, other):
                ids.append(stage(connection, "m.f", (number,)))
                ids += stage_many(connection, "m.f", [(number,), (number,)])
                connection.commit()

    assert ids_in(database_url, "staged_jobs") == sorted(ids)


def test_staging_without_a_pooler_uses_prepared_statements(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        for number in range(10):
            stage(connection, "m.f", (number,))
        assert connection.execute("SELECT FROM pg_prepared_statements").rowcount == 1

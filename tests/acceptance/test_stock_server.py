"""What a server as distributions install it is asked: nothing that it compiles, and nothing slow.

Debian's and PGDG's packages and the docker images have JIT on; the embedded server has none, and would hide a
statement whose plan looks so dear that it is compiled, for a second and more, each time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import class_row
from redis import Redis

from drain import stage
from drain.embedded import EmbeddedPostgres, EmbeddedRedis
from drain.embedded.binaries import POSTGRES
from tests import jobs_for_tests, jobs_of_all_kinds as jobs
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    environment,
    ids_in,
    leading,
    query,
    stage_jobs,
    wait_until,
)

MOST_MILLISECONDS = 100
# For how long a busy machine may stall any one call, which counts for much where a statement is called once only.
STALL_MILLISECONDS = 1000
MANY = 1500
FEW = 10
# The role of our processes. Whoever stages has another one: what an application's sessions are set to is its affair.
OURS = "drain_owner"
APPLICATION = "application"
# All else is as installed: JIT is on, and so is the cost above which it compiles.
SETTINGS = {
    "shared_preload_libraries": "pg_stat_statements,auto_explain",
    "pg_stat_statements.track": "all",
    # For whoever reads why this fails: plans of slow statements, each after the name of its program.
    "auto_explain.log_min_duration": f"{MOST_MILLISECONDS}ms",
    "auto_explain.log_nested_statements": "on",
    "log_line_prefix": "%a: ",
}
# Cost above which the server compiles, in place of 100,000: a call of a function is cheaper, no row of a table is.
ANYTHING_FROM_A_TABLE = 1
# They have no plan, and their time is spent on waiting for others, or for files.
WITHOUT_PLAN = re.compile(r"\s*(LOCK|TRUNCATE|LISTEN|UNLISTEN|NOTIFY)\b", re.IGNORECASE)
RQ_WORKER = [str(Path(sys.executable).with_name("rq")), "worker", "--url"]
OF_ORDERS = [
    jobs.in_a_session,
    jobs.in_a_transaction_of_psycopg,
    jobs.in_steps,
    jobs.fail_once,
    jobs.defer_once,
    jobs.give_up,
    jobs.outlive_the_lease,
]
LOOKS = [
    *("status", "status --json", "dead list"),
    *(f"list {state}" for state in ("staged", "inflight", "finished", "dead")),
    *("list finished --queue mail", "show 1", "show 1 --json"),
]
# All in one process, since most of the time of a command is that of its imports.
COMMANDS = """
import json, sys
from drain.__main__ import main
for words in json.loads(sys.argv[1]):
    try:
        main(words, standalone_mode=False)
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
"""


@dataclass(frozen=True)
class Statement:
    """What pg_stat_statements knows of one; those that differ in their constants only are one."""

    query: str
    calls: int
    milliseconds: float
    compiled: int

    def __str__(self) -> str:
        text = " ".join(self.query.split())
        return f"{self.compiled} functions compiled in {self.calls} calls of {self.milliseconds:.0f} ms: {text:.250}"


@dataclass
class Stock:
    """Such a server, and our processes on it."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis

    @property
    def env(self) -> dict[str, str]:
        given = {"DRAIN_JOBS": jobs.MODULE, "PYTHONPATH": str(ROOT)}
        return environment(self.url_of(OURS), self.redis.url, **given)

    def url_of(self, role: str) -> str:
        return self.postgres.url.replace("postgres@", f"{role}@", 1)

    def administer(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return query(self.postgres.url, statement, *parameters)

    def commands(self, *commands: str) -> None:
        words = json.dumps([command.split() for command in commands])
        with drain_command(words, env=self.env, program=COMMANDS) as command:
            # An audit of a busy system looks again at what seems overdue, for up to 35 s.
            assert command.wait(3 * PATIENCE_SECONDS) == 0

    @contextmanager
    def rq_worker(self, queue: str) -> Iterator[None]:
        """An unmodified `rq worker`, which is killed at the end."""
        with subprocess.Popen(
            [*RQ_WORKER, self.redis.url, queue],
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                yield
            finally:
                process.kill()

    def stage(self, count: int, job: Any, **options: Any) -> None:
        """Stage so many, each in a transaction of its own."""
        with psycopg.connect(self.url_of(APPLICATION), autocommit=True) as connection:
            for number in range(count):
                stage(connection, job, [number], **options)

    def left(self) -> list[tuple[Any, ...]]:
        """Jobs that have neither finished nor died."""
        return self.administer(
            "SELECT id, job_name, queue FROM staged_jobs UNION ALL SELECT id, job_name, queue FROM inflight_jobs"
        )

    def wait_until_all_have_ended(self) -> None:
        try:
            wait_until(lambda: not self.left(), PATIENCE_SECONDS)
        except AssertionError as error:
            error.add_note(f"left: {self.left()[:20]}")
            raise
            raise

    def asked(self) -> list[Statement]:
        """Statements of our role, and of the functions that these called."""
        with psycopg.connect(self.postgres.url) as connection:
            cursor = connection.cursor(row_factory=class_row(Statement))
            cursor.execute(
                "SELECT query, calls, mean_exec_time AS milliseconds, jit_functions AS compiled "
                "FROM pg_stat_statements WHERE userid = %s::regrole ORDER BY jit_functions DESC, total_exec_time DESC",
                [OURS],
            )
            return cursor.fetchall()


@dataclass(frozen=True)
class Asked:
    """What our processes asked the server for: to install, to work, and to work where little is enough to compile."""

    to_install: list[Statement]
    to_work: list[Statement]
    when_little_is_dear: list[Statement]
    log: str


@pytest.fixture(scope="module")
def stock(temporary_directory: str) -> Iterator[Stock]:
    place = installation()
    if place is None:
        pytest.skip(f"there is no PostgreSQL in /usr/lib/postgresql, and {POSTGRES} names none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", temporary_directory)
        with EmbeddedPostgres(bin_directory=place) as postgres, EmbeddedRedis() as redis:
            there = Stock(postgres, redis)
            if missing := lacking(there):
                pytest.skip(f"the PostgreSQL of {place} has no {missing}")
            postgres.settings.update(SETTINGS)
            postgres.restart()
            yield there


def installation() -> Path | None:
    """Directory of the given server's programs, or of the newest that Debian has installed."""
    if named := os.environ.get(POSTGRES):
        return Path(named)
    found = Path("/usr/lib/postgresql").glob("[1-9][0-9]/bin")
    return max(found, key=lambda place: place.parent.name, default=None)


def lacking(stock: Stock) -> str:
    """What the server has not and this needs; empty if it has everything."""
    ((jit, extension, version),) = stock.administer(
        "SELECT pg_jit_available(), "
        "EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_stat_statements'), "
        "current_setting('server_version_num')::integer"
    )
    if not jit:
        return "JIT"
    if not extension:
        return "pg_stat_statements"
    return "" if version >= 150000 else "record of what it compiled, which begins with PostgreSQL 15"


@pytest.fixture(scope="module")
def asked(stock: Stock) -> Asked:
    to_install = install(stock)
    with leading(stock.env, *UNBOUNDED):
        work_on_all_kinds(stock)
        dead = ids_in(stock.postgres.url, "dead_jobs")[0]
        stock.commands(f"dead show {dead}", f"dead discard {dead} --yes", "dead retry --all --yes", *LOOKS)
        work_after_a_flush(stock)
        stock.commands("audit", "init")
    stock.commands("run --once --metrics-port 0", *LOOKS)
    to_work = stock.asked()
    stock.administer("SELECT pg_stat_statements_reset()")
    stock.administer(f"ALTER ROLE {OURS} SET jit_above_cost = {ANYTHING_FROM_A_TABLE}")
    with leading(stock.env, *UNBOUNDED):
        work_after_a_flush(stock)
        stock.commands("audit", *LOOKS)
    return Asked(to_install, to_work, stock.asked(), stock.postgres.log.read_text(errors="replace"))


def install(stock: Stock) -> list[Statement]:
    for role in (OURS, APPLICATION):
        stock.administer(f"CREATE ROLE {role} LOGIN")
    stock.administer(f"ALTER DATABASE drain OWNER TO {OURS}")
    stock.administer("CREATE EXTENSION pg_stat_statements")
    stock.commands("init")
    asked = stock.asked()
    jobs_for_tests.create_effects(stock.postgres.url)
    stock.administer(f"GRANT INSERT ON effects TO {OURS}")
    stock.administer(f"GRANT INSERT, SELECT ON staged_jobs TO {APPLICATION}")
    # As autovacuum may at any moment: all that the planner knows from now on is that the tables are empty.
    stock.administer("ANALYZE")
    stock.administer("SELECT pg_stat_statements_reset()")
    return asked


def work_on_all_kinds(stock: Stock) -> None:
    slow = ("work", "slow", "--prefetch", "1")
    with (
        drain_command("work", "mail", "orders", "--processes", "2", env=stock.env),
        stock.rq_worker("old"),
    ):
        with drain_command(*slow, env=stock.env) as killed:
            stage_all_kinds(stock)
            wait_until(lambda: is_claimed(stock, "slow", fencing_token=1), PATIENCE_SECONDS)
            (process,) = killed.children()
            os.kill(process, signal.SIGKILL)
            wait_until(lambda: is_claimed(stock, "slow", fencing_token=2), PATIENCE_SECONDS)
            killed.kill()
        stock.commands(*LOOKS)
        with drain_command(*slow, env=stock.env):
            stock.wait_until_all_have_ended()


def is_claimed(stock: Stock, queue: str, fencing_token: int) -> bool:
    claimed = (
        "SELECT FROM inflight_jobs WHERE queue = %s AND fencing_token = %s AND lease_expires_at IS NOT NULL"
    )
    return bool(query(stock.postgres.url, claimed, queue, fencing_token))


def stage_all_kinds(stock: Stock) -> None:
    stage_jobs(stock.url_of(APPLICATION), MANY, job=jobs.nothing.job_name, queue="mail")
    stock.stage(FEW, jobs.nothing)
    stock.stage(FEW, jobs.nothing_in_the_loop)
    stock.stage(2, jobs.nothing_in_a_child)
    for job in OF_ORDERS:
        stock.stage(3, job)
    stock.stage(1, jobs.hang_twice)
    for job in (
        jobs.nothing,
        jobs.in_a_session,
        jobs.in_a_transaction_of_psycopg,
        jobs.fail_once,
        jobs.defer_once,
    ):
        stock.stage(1, job, queue="old")
    ((soon,),) = stock.administer("SELECT now() + interval '2 s'")
    stock.stage(FEW, jobs.nothing, run_at=soon)
    ((now,),) = stock.administer("SELECT clock_timestamp() + interval '1 ms'")
    stock.stage(FEW, jobs.nothing, expires_at=now)


# Nobody takes what is pushed before the flush.
UNBOUNDED = ("--depth", "0")


def work_after_a_flush(stock: Stock) -> None:
    """What is pushed while nobody works stays, until Redis forgets it and the leader pushes it again."""
    stage_jobs(stock.url_of(APPLICATION), FEW, job=jobs.nothing.job_name, queue="mail")
    wait_until(lambda: not ids_in(stock.postgres.url, "staged_jobs"), PATIENCE_SECONDS)
    with Redis.from_url(stock.redis.url) as redis:
        redis.flushall()
    with drain_command("work", "mail", "orders", env=stock.env):
        stock.wait_until_all_have_ended()


def test_jobs_of_every_kind_were_finished(stock: Stock, asked: Asked) -> None:
    assert not stock.left()
    ((finished,),) = stock.administer("SELECT count(*) FROM finished_jobs")
    assert finished > MANY


def test_postgres_compiles_none_of_our_statements(asked: Asked) -> None:
    assert_none((statement for statement in asked.to_install + asked.to_work if statement.compiled), asked)


def test_our_sessions_never_compile_even_expensive_statements(asked: Asked) -> None:
    # As when the tables have grown, or the statistics are wrong.
    assert_none((statement for statement in asked.when_little_is_dear if statement.compiled), asked)


def test_none_of_our_statements_is_slow(asked: Asked) -> None:
    # The mean of all calls: on a busy machine any single one may wait for a processor, whatever its plan. What
    # `drain init` asks for is left out: each of its statements runs once, and most of them make files.
    slow = (
        each
        for each in asked.to_work
        if each.calls * each.milliseconds > each.calls * MOST_MILLISECONDS + STALL_MILLISECONDS
    )
    assert_none((each for each in slow if not WITHOUT_PLAN.match(each.query)), asked)


def assert_none(found: Iterable[Statement], asked: Asked) -> None:
    lines = [str(each) for each in found]
    assert not lines, "\n".join([*lines, "from the server's log:", asked.log[-5000:]])

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from drain.embedded import CARELESS, EmbeddedPostgres, EmbeddedRedis, Services, services
from drain.embedded.binaries import find_postgres
from drain.embedded.guarded_server import START_SECONDS
from drain.errors import EmbeddedError
from tests.helpers import ROOT, drain_command, environment, wait_until

pytestmark = pytest.mark.embedded

INSTALLATIONS = [find_postgres(None), *Path("/usr/lib/postgresql").glob("*/bin")]
STOPS = [EmbeddedPostgres.stop, EmbeddedPostgres.kill]

OWNER = """
import os, signal, sys
from drain.embedded import services
# Whoever starts the tests in the background has Ctrl-C ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
with services(durable=False) as running:
    postgres, redis = running.postgres, running.redis
    print(postgres.pid, redis.pid, postgres.directory, redis.directory, flush=True)
    signal.pause()
"""

FORKING_OWNER = """
import os, sys
from drain.embedded import EmbeddedRedis
with EmbeddedRedis() as redis:
    fork = os.fork()
    if fork == 0:
        sys.exit()
    os.waitpid(fork, 0)
    print(redis.answers(), redis.directory.exists())
"""


@pytest.fixture(autouse=True)
def everything_temporary_is_in_memory(temporary_directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", temporary_directory)
    monkeypatch.setenv("TMPDIR", temporary_directory)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as parent:
        yield Path(parent, "servers")


def test_both_servers_start_and_answer(servers: Services) -> None:
    assert ask(servers.database_url, "SELECT current_database()") == "drain"
    with Redis.from_url(servers.redis_url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_both_servers_listen_on_free_ports_when_asked() -> None:
    with services(listen=True, durable=False) as running:
        assert "127.0.0.1:" in running.database_url
        assert "127.0.0.1:" in running.redis_url
        assert ask(running.database_url, "SELECT 1") == 1


def test_only_the_test_database_has_the_schema(database_url: str, empty_database_url: str) -> None:
    staged = "SELECT to_regclass('staged_jobs') IS NOT NULL"
    assert ask(database_url, staged) is True
    assert ask(empty_database_url, staged) is False


def test_settings_of_the_caller_reach_the_server_and_fsync_is_on_by_default() -> None:
    with EmbeddedPostgres(settings={"max_connections": "7"}) as postgres:
        assert ask(postgres.url, "SHOW max_connections") == "7"
        assert ask(postgres.url, "SHOW fsync") == "on"
        assert ask(postgres.url, "SHOW synchronous_commit") == "on"


@pytest.mark.parametrize("installation", INSTALLATIONS, ids=str)
@pytest.mark.parametrize("stop", STOPS)
def test_committed_rows_survive_a_server_restart(
    directory: Path, installation: Path, stop: Callable[[EmbeddedPostgres], None]
) -> None:
    with EmbeddedPostgres(directory, settings=CARELESS, bin_directory=installation) as postgres:
        ask(postgres.url, "CREATE TABLE kept AS SELECT 42 AS number")
        stop(postgres)
        postgres.start()
        assert ask(postgres.url, "SELECT number FROM kept") == 42


def test_only_the_given_directory_outlives_its_owner(directory: Path) -> None:
    with services(directory, durable=False) as first:
        ask(first.database_url, "SELECT lo_create(4242)")
    with services(directory, durable=False) as second:
        assert ask(second.database_url, "SELECT oid FROM pg_largeobject_metadata") == 4242
        assert second.database_url == first.database_url
        assert second.redis_url == first.redis_url
    assert not first.postgres.scratch.exists()
    assert not second.redis.scratch.exists()


@pytest.mark.parametrize("stop", [EmbeddedRedis.stop, EmbeddedRedis.kill])
def test_redis_recovers_the_contents_of_its_append_only_file(
    directory: Path, stop: Callable[[EmbeddedRedis], None]
) -> None:
    with EmbeddedRedis(directory, settings={"appendonly": "yes"}) as redis:
        with Redis.from_url(redis.url) as client:
            client.set("key", "kept")
        stop(redis)
        redis.start()
        with Redis.from_url(redis.url) as client:
            assert client.get("key") == b"kept"


def test_kill_also_ends_busy_backends() -> None:
    with EmbeddedPostgres(settings=CARELESS) as postgres:
        with closing(psycopg.connect(postgres.url)) as busy:
            busy.pgconn.send_query(b"DO $$ BEGIN LOOP END LOOP; END $$")
            postgres.kill()
            eventually(lambda: is_gone(busy.info.backend_pid))
        postgres.start()
        assert ask(postgres.url, "SELECT 1") == 1


def test_a_server_that_died_can_be_started_again() -> None:
    with EmbeddedPostgres(settings=CARELESS) as postgres:
        os.kill(postgres.pid, signal.SIGKILL)
        eventually(lambda: is_gone(postgres.pid))
        postgres.start()
        assert ask(postgres.url, "SELECT 1") == 1


def test_starting_and_stopping_are_idempotent() -> None:
    redis = EmbeddedRedis()
    with redis:
        pid = redis.pid
        redis.start()
        assert redis.pid == pid
        redis.stop()
        redis.stop()
        redis.kill()
        redis.restart()
        assert redis.pid != pid
    redis.close()
    assert not redis.directory.exists()


def test_two_instances_run_side_by_side(servers: Services) -> None:
    with services(durable=False) as others:
        ask(others.database_url, "SELECT lo_create(4242)")
        assert ask(servers.database_url, "SELECT count(*) FROM pg_largeobject_metadata") == 0
        with Redis.from_url(others.redis_url) as other, Redis.from_url(servers.redis_url) as client:
            other.set("key", "theirs")
            assert client.get("key") is None


def test_a_directory_in_use_is_refused_and_its_user_undisturbed(directory: Path) -> None:
    with services(directory, durable=False) as first:
        with pytest.raises(EmbeddedError, match=r"lock file .* already exists"):
            EmbeddedPostgres(directory / "postgres").start()
        with pytest.raises(EmbeddedError, match="another Redis runs in"):
            EmbeddedRedis(directory / "redis").start()
        assert first.postgres.answers()
        assert first.redis.answers()


@pytest.mark.parametrize("name", ["x" * 120, "it's 100% a ? & # +"])
def test_any_path_will_do(directory: Path, name: str) -> None:
    with services(directory / name, durable=False) as running:
        assert ask(running.database_url, "SELECT 1") == 1
        running.redis.restart()
        assert running.redis.directory == directory / name / "redis"


@pytest.mark.parametrize("last_signal", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_its_owner(last_signal: signal.Signals) -> None:
    with owner(OWNER) as process:
        assert process.stdout is not None
        postgres, redis, *directories = process.stdout.readline().split()
        # To the whole group, as the terminal does it.
        os.killpg(process.pid, last_signal)
        process.wait(60)
        eventually(lambda: is_gone(int(postgres)) and is_gone(int(redis)))
        eventually(lambda: not any(Path(directory).exists() for directory in directories))


def test_a_fork_of_the_owner_does_not_stop_the_servers() -> None:
    with owner(FORKING_OWNER) as process:
        assert process.communicate(timeout=60)[0] == "True True\n"


@pytest.mark.parametrize(("server", "missing"), [(EmbeddedPostgres, "PostgreSQL"), (EmbeddedRedis, "Redis")])
def test_the_error_for_missing_binaries_says_what_to_install(
    directory: Path, server: Callable[..., object], missing: str
) -> None:
    with pytest.raises(EmbeddedError, match=rf"no {missing} found: pip install .+, or install Debian's"):
        server(bin_directory=directory.parent)


def test_the_servers_that_the_environment_names_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("postgres", "initdb", "any-redis"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("DRAIN_TEST_POSTGRES", str(tmp_path))
    monkeypatch.setenv("DRAIN_TEST_REDIS", str(tmp_path / "any-redis"))
    assert EmbeddedPostgres().bin_directory == tmp_path
    assert EmbeddedRedis().binary == str(tmp_path / "any-redis")


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("DRAIN_TEST_POSTGRES", "no directory with `postgres` and `initdb` in it"),
        ("DRAIN_TEST_REDIS", "no program that can be run, such as /usr/bin/redis-server"),
    ],
)
def test_tests_on_unreachable_servers_end_with_one_line(variable: str, reason: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/unit/test_cursor.py",
    ]
    given = os.environ | {variable: "/nowhere"}
    ended = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert f"{ended.stdout}{ended.stderr}".strip() == f"ERROR: {variable}=/nowhere: {reason}"


# Settings of somebody who works with another server too, which would not be the embedded one.
ANOTHER_SERVER = {
    "PGPORT": "1",
    "PGHOST": "nowhere.invalid",
    "PGHOSTADDR": "127.0.0.1",
    "PGUSER": "nobody",
    "PGDATABASE": "nothing",
    "PGOPTIONS": "-c search_path=nothing",
    "PGSERVICE": "nothing",
    "PGSSLMODE": "require",
    "PGDATA": "/nowhere",
}


def test_settings_for_another_postgres_do_not_reach_the_embedded_one(redis_url: str) -> None:
    given = environment("postgresql://nowhere", redis_url) | ANOTHER_SERVER
    with drain_command("dev", env=given) as command:
        wait_until(lambda: "paste these" in command.output, START_SECONDS)
        (line,) = (line for line in command.output.splitlines() if "DATABASE" in line)
        url = line.split("'")[1]
        # As in another shell where the variable is set.
        look = [
            sys.executable,
            "-c",
            f"import psycopg; psycopg.connect({url!r}).execute('TABLE staged_jobs')",
        ]
        subprocess.run(look, env=os.environ | {"PGPORT": "1", "PGHOST": "nowhere.invalid"}, check=True)


def test_settings_for_another_postgres_are_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICE", "nothing")
    with services(durable=False, listen=True) as running:
        assert ask(running.database_url, "SELECT 1") == 1
    assert os.environ["PGSERVICE"] == "nothing"


def test_a_failed_start_is_explained_and_leaves_nothing_behind() -> None:
    redis = EmbeddedRedis(settings={"maxmemory-policy": "whatever"})
    with pytest.raises(EmbeddedError, match=r"Redis did not start; its log ends: .*whatever"):
        redis.start()
    assert not redis.scratch.exists()
    with pytest.raises(EmbeddedError, match="Redis is not running"):
        _ = redis.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide binaries from the server")
def test_root_can_use_binaries_and_data_only_root_can_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Memory may be mounted so that nothing in it can be executed.
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", None)
    home = Path(pwd.getpwuid(0).pw_dir)
    with hidden_directory(home) as hidden, permissions_unchanged(hidden):
        binaries = copy_of_installation(find_postgres(None), hidden)
        directory = hidden / "data of ours"
        with EmbeddedPostgres(directory, settings=CARELESS, bin_directory=binaries) as postgres:
            ask(postgres.url, "SELECT lo_create(4242)")
            postgres.kill()
            postgres.start()
            assert ask(postgres.url, "SELECT oid FROM pg_largeobject_metadata") == 4242
        assert not postgres.scratch.exists()


def test_permissions_of_other_directories_do_not_change(directory: Path) -> None:
    with (
        permissions_unchanged(directory.parent),
        permissions_unchanged(find_postgres(None)),
        services(directory, durable=False) as running,
    ):
        assert ask(running.database_url, "SELECT 1") == 1


def ask(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # An orphan stays a zombie for as long as process 1 does not look.
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return True
    except FileNotFoundError:
        return False


@contextmanager
def owner(program: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def hidden_directory(parent: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        yield Path(directory)


def copy_of_installation(bin_directory: Path, target: Path) -> Path:
    installation = bin_directory.parent
    package = installation.parent
    shutil.copytree(installation, target / package.name / installation.name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    return target / package.name / installation.name / bin_directory.name


@contextmanager
def permissions_unchanged(directory: Path) -> Iterator[None]:
    directories = [directory, *directory.parents]
    before = [(each.stat().st_mode, each.stat().st_uid) for each in directories]
    yield
    assert before == [(each.stat().st_mode, each.stat().st_uid) for each in directories]

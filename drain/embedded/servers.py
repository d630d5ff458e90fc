"""Real PostgreSQL and real Redis as children of this process: for development and tests.

PostgreSQL refuses to run as root, so root runs it as `postgres` or `nobody`. These may be unable
to reach the data or the binaries, below /root say. No permission of a directory that is not ours
changes for that: the data are reached through an open descriptor, the binaries are copied.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from drain.embedded.binaries import find_postgres, find_redis, path_for, reachable, unprivileged_account
from drain.embedded.guarded_server import START_SECONDS, Credentials, GuardedServer
from drain.errors import EmbeddedError

CONNECT_SECONDS = 5

# Port in the name of the Unix socket, where the server listens on nothing else.
SOCKET_PORT = 5432

# Leaves room for a NUL in the shortest `sun_path` in use, the 104 bytes of macOS.
LONGEST_SOCKET_PATH = 100

# Survives every death of a process, though not of the machine. `synchronous_commit` stays on:
# without it a killed server forgets what it has confirmed.
CARELESS = {"fsync": "off", "full_page_writes": "off"}

_INITDB = (
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--username=postgres",
    "--no-instructions",
    "--no-sync",
)


class EmbeddedPostgres(GuardedServer):
    """A PostgreSQL of our own, with a database `drain`, on a Unix socket.

    Args:
        directory: Where the data live; None for a temporary one, which `close` removes.
        settings: Server settings by name, over the defaults.
        listen: Listen on a free port of 127.0.0.1 too, and name that in `url`.
        port: Listen on this port instead of a free one.
        bin_directory: Where `postgres` and `initdb` are; None to look for them.
    """

    title = "PostgreSQL"
    stop_signal = "INT"

    def __init__(
        self,
        directory: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        listen: bool = False,
        port: int | None = None,
        bin_directory: Path | None = None,
    ) -> None:
        super().__init__(directory)
        self.settings = dict(settings or {})
        self.port = port or (_free_port() if listen else None)
        self.bin_directory = find_postgres(bin_directory)
        self._data = self.directory / "data"
        self._sockets = _with_room_for(f".s.PGSQL.{SOCKET_PORT}", self._data, self.scratch / "sockets")

    @property
    def url(self) -> str:
        """URL of the database `drain`."""
        return self.url_of("drain")

    def url_of(self, database: str) -> str:
        """URL of another database of this server."""
        if self.port:
            return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
        # The port names the socket's file, and PGPORT would name another one.
        return f"postgresql://postgres@/{database}?host={quote(str(self._sockets))}&port={SOCKET_PORT}"

    def launch(self) -> None:
        """Run `initdb` where there are no data yet, and the server on them."""
        if not self._data.exists():
            self._create_data()
        self._sockets.mkdir(mode=0o700, exist_ok=True)
        os.chown(self._sockets, self._data.stat().st_uid, -1)
        settings = {
            "listen_addresses": "127.0.0.1" if self.port else "",
            "port": str(self.port or SOCKET_PORT),
            "unix_socket_directories": "." if self._sockets == self._data else str(self._sockets),
            "max_connections": "100",
            "shared_buffers": "128MB",
            # In the directory and gone with it, where a killed server's would stay in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
        } | self.settings
        self._run_on(self._data, "postgres", [f"--{name}={settings[name]}" for name in settings])

    def answers(self) -> bool:
        """Whether the database `drain` is there; creates it at the first answer."""
        # One that still runs in this directory would answer in the place of ours.
        if not self._locked_by(self.pid):
            return False
        try:
            with psycopg.connect(
                self.url_of("postgres"), autocommit=True, connect_timeout=CONNECT_SECONDS
            ) as connection:
                found = connection.execute("SELECT FROM pg_database WHERE datname = 'drain'")
                if not found.rowcount:
                    connection.execute("CREATE DATABASE drain")
        except psycopg.OperationalError:
            return False
        return True

    def _locked_by(self, pid: int) -> bool:
        with suppress(FileNotFoundError):
            return (self._data / "postmaster.pid").read_text().startswith(f"{pid}\n")
        return False

    def _create_data(self) -> None:
        # Renamed when complete, so that an initdb cut short leaves nothing to start on.
        unfinished = self.directory / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if os.geteuid() == 0:
            account = unprivileged_account()
            os.chown(unfinished, account.pw_uid, account.pw_gid)
        if not _ends_well(self._run_on(unfinished, "initdb", _INITDB)):
            raise self.failure("could not be initialised")
        self.kill()
        unfinished.rename(self._data)

    def _run_on(self, data: Path, program: str, options: Iterable[str]) -> subprocess.Popen[bytes]:
        if os.geteuid() != 0:
            return self.run([self.bin_directory / program, "-D", data, *options])
        owner = data.stat()
        # Open to pass through only: root writes into no directory that belongs to somebody else.
        self.scratch.chmod(0o711)
        credentials = Credentials(user=owner.st_uid, group=owner.st_gid, extra_groups=[])
        binary = reachable(self.bin_directory, credentials, self.scratch) / program
        with path_for(data) as (path, descriptors):
            return self.run([binary, "-D", path, *options], credentials, descriptors)


class EmbeddedRedis(GuardedServer):
    """A Redis (or Valkey) of our own, on a Unix socket.

    Args:
        directory: Where log, socket and data live; None for a temporary one, which `close` removes.
        settings: Server settings by name, over the defaults, such as `{"appendonly": "yes"}`.
        listen: Listen on a free port of 127.0.0.1 too, and name that in `url`.
        port: Listen on this port instead of a free one.
        bin_directory: Where `redis-server` or `valkey-server` is; None to look for it.
    """

    title = "Redis"
    stop_signal = "TERM"

    def __init__(
        self,
        directory: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        listen: bool = False,
        port: int | None = None,
        bin_directory: Path | None = None,
    ) -> None:
        super().__init__(directory)
        self.settings = dict(settings or {})
        self.port = port or (_free_port() if listen else None)
        self.binary = find_redis(bin_directory)
        self._socket = _with_room_for("redis.sock", self.directory, self.scratch) / "redis.sock"

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0" if self.port else self._socket_url

    @property
    def _socket_url(self) -> str:
        return f"unix://{quote(str(self._socket))}?db=0"

    def launch(self) -> None:
        """Run the server, unless another one runs in this directory."""
        if self._info():
            # A second one would start, and take the socket from the first.
            raise EmbeddedError(
                f"another Redis runs in {self.directory}; stop it, or choose another directory"
            )
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port or 0),
            "unixsocket": str(self._socket),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
        } | self.settings
        options = [part for name, text in settings.items() for part in (f"--{name}", text)]
        self.run([self.binary, *options])

    def answers(self) -> bool:
        """Whether it has loaded its data and serves them."""
        info = self._info()
        return info.get("process_id") == self.pid and not info.get("loading")

    def _info(self) -> dict[str, object]:
        once = Retry(NoBackoff(), 0)
        with redis.Redis.from_url(self._socket_url, socket_timeout=CONNECT_SECONDS, retry=once) as client:
            try:
                return dict(client.info())
            except redis.RedisError:
                return {}


@dataclass(frozen=True)
class Services:
    """Both servers, running."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis

    @property
    def database_url(self) -> str:
        """URL of the database `drain`."""
        return self.postgres.url

    @property
    def redis_url(self) -> str:
        """URL of database 0 of Redis."""
        return self.redis.url


@contextmanager
def services(
    directory: Path | None = None,
    *,
    listen: bool = False,
    postgres_port: int | None = None,
    redis_port: int | None = None,
    durable: bool = True,
    postgres_settings: Mapping[str, str] | None = None,
    redis_settings: Mapping[str, str] | None = None,
) -> Iterator[Services]:
    """Run both servers for as long as the block runs.

    Meanwhile the environment of this process lacks libpq's variables, such as PGPORT, PGOPTIONS and PGSERVICE:
    they are meant for another server.

    Args:
        directory: Where to keep the data; None for a temporary directory.
        listen: Listen on free ports of 127.0.0.1 instead of Unix sockets alone.
        postgres_port: Let PostgreSQL listen on this port of 127.0.0.1.
        redis_port: Let Redis listen on this port of 127.0.0.1.
        durable: False spares PostgreSQL its fsyncs: a crash of the machine may lose data.
        postgres_settings: Server settings of PostgreSQL by name.
        redis_settings: Server settings of Redis by name.

    Raises:
        EmbeddedError: One of the two is not installed, or did not start.
    """
    postgres = EmbeddedPostgres(
        directory and directory / "postgres",
        settings=({} if durable else CARELESS) | dict(postgres_settings or {}),
        listen=listen,
        port=postgres_port,
    )
    redis_ = EmbeddedRedis(
        directory and directory / "redis", settings=redis_settings, listen=listen, port=redis_port
    )
    with without_client_settings(), postgres, redis_:
        yield Services(postgres, redis_)


@contextmanager
def without_client_settings() -> Iterator[None]:
    """Take libpq's variables out of the environment of this process for as long as the block runs."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    try:
        yield
    finally:
        os.environ.update(taken)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _with_room_for(name: str, preferred: Path, fallback: Path) -> Path:
    fits = len(os.fsencode(preferred / name)) <= LONGEST_SOCKET_PATH
    return preferred if fits else fallback


def _ends_well(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(START_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False

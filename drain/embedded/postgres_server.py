"""Real PostgreSQL as a child of this process.

It refuses to run as root, so root uses `postgres` or `nobody`, which may not reach data or programs, as below /root.
No foreign permissions are changed: data are reached by an open descriptor, and programs copied.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psycopg

from drain.embedded.addresses import directory_with_room_for, free_port
from drain.embedded.binaries import find_postgres, path_for, reachable, unprivileged_account
from drain.embedded.guarded_server import START_SECONDS, GuardedServer
from drain.embedded.server_process import Credentials, ServerProcess

# Per attempt.
_CONNECT_SECONDS = 5

# Names the Unix socket's file.
_SOCKET_PORT = 5432

# Data survive the death of any process, not of the machine. Without `synchronous_commit`, a killed server would forget
# confirmed commits.
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
    """PostgreSQL with a database `drain`, on a Unix socket.

    Args:
        directory: None for a temporary one.
        settings: Override the defaults.
        listen: Also on a free port of 127.0.0.1.
        port: Instead of a free one.
        bin_directory: None to search.
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
        self.port = port or (free_port() if listen else None)
        self.bin_directory = find_postgres(bin_directory)
        self._data = self.directory / "data"
        self._sockets = directory_with_room_for(
            f".s.PGSQL.{_SOCKET_PORT}", self._data, self.scratch / "sockets"
        )

    @property
    def url(self) -> str:
        """URL of the database `drain`."""
        return self.url_of("drain")

    def url_of(self, database: str) -> str:
        """Build another database's URL."""
        if self.port:
            return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
        # PGPORT would name another socket file.
        return f"postgresql://postgres@/{database}?host={quote(str(self._sockets))}&port={_SOCKET_PORT}"

    def launch(self) -> None:
        """Run `initdb` if needed, then the server."""
        if not self._data.exists():
            self._create_data()
        self._sockets.mkdir(mode=0o700, exist_ok=True)
        os.chown(self._sockets, self._data.stat().st_uid, -1)
        settings = {
            "listen_addresses": "127.0.0.1" if self.port else "",
            "port": str(self.port or _SOCKET_PORT),
            "unix_socket_directories": "." if self._sockets == self._data else str(self._sockets),
            "max_connections": "100",
            "shared_buffers": "128MB",
            # Removed with the directory; a killed server would leave shared memory in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
        } | self.settings
        self._run_on(self._data, "postgres", [f"--{name}={settings[name]}" for name in settings])

    def answers(self) -> bool:
        """Create the database `drain` if missing; True once this server answers."""
        # Another server in this directory could answer instead.
        if not self._locked_by(self.pid):
            return False
        try:
            with psycopg.connect(
                self.url_of("postgres"), autocommit=True, connect_timeout=_CONNECT_SECONDS
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
        # Renamed when complete: an interrupted initdb leaves nothing to start on.
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

    def _run_on(self, data: Path, program: str, options: Iterable[str]) -> ServerProcess:
        if os.geteuid() != 0:
            return self.run([self.bin_directory / program, "-D", data, *options])
        owner = data.stat()
        # Traversal only: root writes into no other account's directory.
        self.scratch.chmod(0o711)
        credentials = Credentials(user=owner.st_uid, group=owner.st_gid, extra_groups=[])
        binary = reachable(self.bin_directory, credentials, self.scratch) / program
        with path_for(data) as (path, descriptors):
            return self.run([binary, "-D", path, *options], credentials, descriptors)


def _ends_well(process: ServerProcess) -> bool:
    try:
        return process.wait(START_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False

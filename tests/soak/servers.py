"""Both servers: PostgreSQL with a synchronous replica, each on a disk of its own, behind proxies."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from psycopg import errors

from drain.database import postgres, schema
from drain.embedded import CARELESS, EmbeddedPostgres, EmbeddedRedis
from drain.embedded.services import without_client_settings
from tests.proxy import Proxy
from tests.replicas import Replica, follow_replica, socket_of
from tests.soak.clock import Clock
from tests.soak.plan import POSTGRES, REDIS

_DISK_BYTES = {POSTGRES: 2 << 30, REDIS: 256 << 20}
_SETTINGS = CARELESS | {
    # The time of each commit is kept, so that it can be compared with that of the job's claim.
    "track_commit_timestamp": "on",
    "max_wal_size": "256MB",
    # For a replica that reconnects.
    "wal_keep_size": "256MB",
    # Commits wait for the replica, which by default reports each ten seconds if there is nothing new.
    "wal_receiver_status_interval": "1s",
    "wal_receiver_timeout": "10s",
    "wal_sender_timeout": "10s",
    # A crash loses the statistics that autovacuum goes by, and comes more often than its default of a minute.
    "autovacuum_naptime": "1s",
}
_BLOCK_BYTES = 4096
# Fills a disk.
BALLAST = "ballast"
_CLONE_NEWNS = 0x00020000
_M_ARENA_MAX = -8
_DELAY_SECONDS = 0.1
# What migrations do: a column for each table of jobs, and each function once more. A dropped column still counts toward
# the 1,600 of a table and widens its rows, so later migrations rename it.
MIGRATE = """
SET lock_timeout = '2s';
DO $$
DECLARE
    jobs text;
    function text;
    last_name text;
    columns integer;
BEGIN
    FOREACH jobs IN ARRAY ARRAY['staged_jobs', 'inflight_jobs', 'finished_jobs', 'dead_jobs'] LOOP
        SELECT max(attname) FILTER (WHERE attname LIKE 'soak%'), max(attnum) INTO last_name, columns
            FROM pg_attribute WHERE attrelid = jobs::regclass AND attnum > 0;
        IF columns < 100 THEN
            EXECUTE format('ALTER TABLE %I DROP COLUMN IF EXISTS soak', jobs);
            EXECUTE format('ALTER TABLE %I ADD COLUMN soak text', jobs);
        ELSIF last_name = 'soak' THEN
            EXECUTE format('ALTER TABLE %I RENAME COLUMN soak TO soaked', jobs);
        ELSE
            EXECUTE format('ALTER TABLE %I RENAME COLUMN soaked TO soak', jobs);
        END IF;
    END LOOP;
    FOR function IN SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'drain\\_%' AND prokind = 'f' LOOP
        EXECUTE function;
    END LOOP;
END
$$
"""


class Disk:
    """A file system in memory, which can be full; a directory that cannot, if this process is not root's."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        self._ballast = directory / BALLAST
        directory.mkdir(parents=True)
        mount = ("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "soak", directory)
        self.can_be_full = subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode == 0

    def fill(self) -> None:
        """Leave no block free."""
        with self._ballast.open("wb") as ballast:
            blocks = os.statvfs(self.directory).f_bavail
            while blocks:
                size = os.fstat(ballast.fileno()).st_size
                try:
                    os.posix_fallocate(ballast.fileno(), size, blocks * _BLOCK_BYTES)
                except OSError:
                    # The server was quicker.
                    blocks //= 2

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink()

    def remove(self) -> None:
        """Remove it with all that it holds but the log."""
        if (log := self.directory / "data" / "server.log").is_file():
            shutil.copyfile(log, self.directory.with_suffix(".log"))
        if self.can_be_full:
            subprocess.run(("umount", "--lazy", self.directory), check=True)
        shutil.rmtree(self.directory)


class Servers:
    """A primary, its replica, and Redis.

    Attributes:
        postgres: The primary.
        redis: Saves what it holds every second.
        clients: The proxies between the programs and the servers.
        disks: That of the primary and that of Redis.
        clock: That of PostgreSQL.
    """

    def __init__(self, directory: Path) -> None:
        _own_mounts()
        _share_one_arena()
        self._directory = directory
        self._numbers = count(1)
        self.clock = Clock()
        self.disks = {name: self._disk(name) for name in (POSTGRES, REDIS)}
        self.postgres = EmbeddedPostgres(self.disks[POSTGRES].directory / "data", settings=_SETTINGS)
        # What a Redis that is killed comes back with is up to a second old.
        self.redis = EmbeddedRedis(self.disks[REDIS].directory / "data", settings={"save": "1 1"})
        self._replica: Replica | None = None
        self._replica_disk: Disk | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(without_client_settings())
            stack.callback(self._close)
            self.redis.start()
            self._start(self.postgres)
            schema.install(self.database_url)
            primary = socket_of(self.postgres)
            self._stream = Proxy(primary)
            self.clients = {
                POSTGRES: Proxy(primary),
                REDIS: Proxy(unquote(urlsplit(self.redis.url).path)),
            }
            for proxy in (self._stream, *self.clients.values()):
                stack.callback(proxy.listener.close)
            self._add_replica()
            follow_replica(self.database_url)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _close(self) -> None:
        for server in (self._replica, self.postgres, self.redis):
            if server is not None:
                server.close()
        for disk in (self._replica_disk, *self.disks.values()):
            if disk is not None:
                disk.remove()
        self.clock.close()

    @property
    def database_url(self) -> str:
        """URL of the primary, past the proxy."""
        return self.postgres.url

    @property
    def urls(self) -> tuple[str, str]:
        """URLs of the database and of Redis for programs."""
        ports = [self.clients[name].port for name in (POSTGRES, REDIS)]
        return f"postgresql://postgres@127.0.0.1:{ports[0]}/drain", f"redis://127.0.0.1:{ports[1]}"

    def fail_over(self) -> Callable[[], None]:
        """Let the replica replace the primary, which never returns; the end adds another replica."""
        assert self._replica is not None
        assert self._replica_disk is not None
        former, disk = self.postgres, self.disks[POSTGRES]
        former.kill()
        self.postgres, self.disks[POSTGRES] = self._replica, self._replica_disk
        self._replica = self._replica_disk = None
        with closing(postgres.connect(self.postgres.url, "soak")) as connection:
            connection.execute("SELECT pg_promote()")
        self._stream.target = self.clients[POSTGRES].target = socket_of(self.postgres)

        def add_replica() -> None:
            former.close()
            disk.remove()
            self._add_replica()

        return add_replica

    def restart(self) -> None:
        """Restart the primary, or start it."""
        self.postgres.stop()
        self._start(self.postgres)

    def migrate(self) -> bool:
        """Change tables and functions under load; False if programs held locks for too long."""
        with closing(postgres.connect(self.database_url, "soak")) as connection:
            try:
                connection.execute(MIGRATE)
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                return False
        return True

    def slow_down(self, target: str) -> Callable[[], None]:
        """Delay what passes between the programs and a server."""
        proxy = self.clients[target]
        proxy.delay_seconds = _DELAY_SECONDS

        def end() -> None:
            proxy.delay_seconds = 0.0

        return end

    def shorten_logs(self) -> None:
        """Empty the logs of running servers, and remove those of former ones."""
        for server in filter(None, (self.postgres, self._replica, self.redis)):
            os.truncate(server.log, 0)
        for log in self._directory.glob(f"{POSTGRES.lower()}-*.log"):
            log.unlink()

    def _add_replica(self) -> None:
        self._replica_disk = self._disk(POSTGRES)
        settings = _SETTINGS | {"synchronous_standby_names": "*"}
        self._replica = Replica(self._stream, self._replica_disk.directory / "data", settings)
        self._start(self._replica)

    def _disk(self, name: str) -> Disk:
        return Disk(self._directory / f"{name.lower()}-{next(self._numbers)}", _DISK_BYTES[name])

    def _start(self, server: EmbeddedPostgres) -> None:
        with self.clock.preloaded():
            server.start()


def _own_mounts() -> None:
    """Let mounts end with this process and its children; only Linux and root can."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is not None and unshare(_CLONE_NEWNS) == 0:
        subprocess.run(("mount", "--make-rprivate", "/"), check=True)


def _share_one_arena() -> None:
    """Let threads of the proxies share memory: glibc gives them arenas, which keep all that was ever needed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)

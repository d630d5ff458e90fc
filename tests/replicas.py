"""A PostgreSQL, an asynchronous replica of it, and a failover that loses the last transactions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from drain.database import schema
from drain.embedded import EmbeddedPostgres
from drain.embedded.binaries import find_postgres, unprivileged_account
from drain.embedded.postgres_server import CARELESS
from tests.helpers import PATIENCE_SECONDS, disconnect, query, wait_until
from tests.proxy import Proxy, proxied

HAS_BASEBACKUP = shutil.which("pg_basebackup", path=str(find_postgres(None))) is not None


class Replica(EmbeddedPostgres):
    """A streaming replica of the server behind a proxy, copied from it by `pg_basebackup`."""

    def __init__(
        self, primary: Proxy, directory: Path | None = None, settings: Mapping[str, str] = CARELESS
    ) -> None:
        # By default, a promotion that begins while the primary cannot be reached takes 5 s.
        super().__init__(directory, settings={**settings, "wal_retrieve_retry_interval": "100ms"})
        self._primary = primary

    def _create_data(self) -> None:
        self._data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            account = unprivileged_account()
            os.chown(self._data, account.pw_uid, account.pw_gid)
        source = f"host=127.0.0.1 port={self._primary.port} user=postgres sslmode=disable gssencmode=disable"
        options = (f"--dbname={source}", "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        if self._run_on(self._data, "pg_basebackup", options).wait(PATIENCE_SECONDS):
            raise self.failure("could not be copied")
        self.kill()
        # The primary's socket may be among its data.
        for lock in self._data.glob(".s.PGSQL.*.lock"):
            lock.unlink()


@dataclass(frozen=True)
class Pair:
    """Both servers, each with the database `drain`.

    Attributes:
        clients: Leads to the primary, and after `lead_clients_to_replica` to the replica.
        url: Through `clients`.
    """

    primary: EmbeddedPostgres
    replica: Replica
    stream: Proxy
    clients: Proxy
    url: str

    @property
    def url_of_both(self) -> str:
        """URL of whichever accepts writes, without `clients`."""
        hosts, ports = zip(*(_place(server) for server in (self.primary, self.replica)), strict=True)
        names = ",".join(map(quote, hosts))
        return f"postgresql://postgres@/drain?host={names}&port={','.join(ports)}&target_session_attrs=read-write"

    def freeze(self) -> None:
        """Let the replica receive all that is committed, and nothing that is committed later."""
        # Also flushes the leader's commits, which do not wait for the disk.
        query(self.primary.url, "SELECT pg_logical_emit_message(true, 'test', '')")
        ((end,),) = query(self.primary.url, "SELECT pg_current_wal_flush_lsn()::text")
        received = "SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), %s::text::pg_lsn) >= 0"
        wait_until(lambda: query(self.replica.url, received, end) == [(True,)])
        self.stream.stalled.set()

    def wait_for_replica(self) -> None:
        """Let commits wait until the replica has them."""
        follow_replica(self.primary.url)

    def lead_clients_to_replica(self) -> None:
        """Kill the primary, and wait for a client of the replica, which is read-only until `promote`."""
        self.clients.target = socket_of(self.replica)
        sessions = "SELECT sessions FROM pg_stat_database WHERE datname = 'drain'"
        before = query(self.replica.url_of("postgres"), sessions)
        disconnect()
        self.primary.kill()
        wait_until(lambda: query(self.replica.url_of("postgres"), sessions) > before)

    def promote(self) -> None:
        """Make the replica a primary."""
        assert query(self.replica.url_of("postgres"), "SELECT pg_promote()") == [(True,)]


@contextmanager
def replicated() -> Iterator[Pair]:
    """Run a primary with our tables, and a replica of it."""
    with EmbeddedPostgres(settings=CARELESS) as primary:
        schema.install(primary.url)
        stream = Proxy(socket_of(primary))
        try:
            with Replica(stream) as replica, proxied(primary.url) as (clients, url):
                yield Pair(primary, replica, stream, clients, url)
                disconnect()
        finally:
            stream.listener.close()


def follow_replica(primary_url: str) -> None:
    """Let commits wait until a replica has them."""
    query(primary_url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    query(primary_url, "SELECT pg_reload_conf()")
    is_synchronous = "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"
    wait_until(lambda: query(primary_url, is_synchronous))


def _place(server: EmbeddedPostgres) -> tuple[str, str]:
    parts = conninfo_to_dict(server.url)
    return str(parts["host"]), str(parts["port"])


def socket_of(server: EmbeddedPostgres) -> str:
    """Path of a server's socket."""
    directory, port = _place(server)
    return f"{directory}/.s.PGSQL.{port}"

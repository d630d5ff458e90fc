"""A server that accepts and never answers is given up within a bound."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from drain import daemon, postgres, schema, stage
from drain.config import Settings
from drain.daemon import Daemon
from drain.embedded import EmbeddedPostgres
from drain.errors import UnavailableError
from tests.support import wait_until
from workers import entry
from workers.entry import Worker


class Proxy:
    """Forwards TCP to a port of this machine, until it is told to stall: then it takes all and answers nothing."""

    def __init__(self, port: int) -> None:
        self.target = ("127.0.0.1", port)
        self.stalled = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self.target) as server:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    if not self.stalled.is_set():
                        (server if ready is client else client).sendall(data)


@contextmanager
def proxied() -> Iterator[tuple[Proxy, str, str]]:
    """A PostgreSQL of the test's own: a proxy to it, the URL through the proxy, and the direct one."""
    with EmbeddedPostgres(listen=True) as server:
        schema.install(server.url)
        assert server.port is not None
        proxy = Proxy(server.port)
        try:
            yield proxy, f"postgresql://postgres@127.0.0.1:{proxy.port}/drain", server.url
        finally:
            proxy.listener.close()


def test_an_enqueuer_gives_up_a_postgres_that_stopped_answering_and_comes_back(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_STALLED_SECONDS", 1.0)
    with proxied() as (proxy, through, direct):
        running = Daemon(Settings(database_url=through, redis_url=redis_url))
        thread = threading.Thread(target=running.run)
        thread.start()
        try:
            wait_until(lambda: running.answers().unready() is None)
            proxy.stalled.set()
            wait_until(lambda: running.answers().unready() is not None)
            proxy.stalled.clear()
            with psycopg.connect(direct) as connection:
                stage(connection, "m.f")
            with psycopg.connect(direct, autocommit=True) as connection:
                wait_until(lambda: not connection.execute("SELECT FROM staged_jobs").rowcount)
        finally:
            running.stop()
            proxy.stalled.clear()
            thread.join(timeout=20)
        assert not thread.is_alive()


def test_a_worker_gives_up_a_postgres_that_stopped_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_STALLED_SECONDS", 0.5)
    monkeypatch.setattr(entry, "_PATIENCE_SECONDS", 0.0)
    with proxied() as (proxy, through, _):
        worker = Worker(Settings(database_url=through))
        assert worker.execute(1) == "refused"
        proxy.stalled.set()
        with pytest.raises(UnavailableError):
            worker.execute(1)


def test_a_connection_that_is_broken_off_from_another_thread_fails_at_once(database_url: str) -> None:
    connection = postgres.connect(database_url, "test")
    with (
        connection,
        pytest.raises(psycopg.OperationalError),
        postgres.time_limit(connection, 0.2),
    ):
        connection.execute("SELECT pg_sleep(30)")

"""A man in the middle between a client and a PostgreSQL of the test's own."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from drain.database import schema
from drain.embedded import CARELESS, EmbeddedPostgres


class Proxy:
    """Forwards TCP to a port of this machine, until it is told otherwise.

    Attributes:
        stalled: While it is set, all is taken and nothing answered.
        stall_at: A request with these bytes in it sets it.
        lose: A request with these bytes in it loses its connection; once.
        heard: Whether the server still got that request, so that only its answer was lost.
    """

    def __init__(self, port: int) -> None:
        self.target = ("127.0.0.1", port)
        self.stalled = threading.Event()
        self.stall_at: bytes | None = None
        self.lose: bytes | None = None
        self.heard = True
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
                    if not data or (ready is client and self._loses(data, server)):
                        return
                    if ready is client and self.stall_at and self.stall_at in data:
                        self.stalled.set()
                    if not self.stalled.is_set():
                        (server if ready is client else client).sendall(data)

    def _loses(self, data: bytes, server: socket.socket) -> bool:
        if self.lose is None or self.lose not in data:
            return False
        self.lose = None
        if self.heard:
            server.sendall(data)
            # The server has done it once it answers.
            server.recv(65536)
        return True


@contextmanager
def proxied() -> Iterator[tuple[Proxy, str, str]]:
    """A PostgreSQL of the test's own: a proxy to it, the URL through the proxy, and the direct one."""
    with EmbeddedPostgres(listen=True, settings=CARELESS) as server:
        schema.install(server.url)
        assert server.port is not None
        proxy = Proxy(server.port)
        try:
            yield proxy, f"postgresql://postgres@127.0.0.1:{proxy.port}/drain", server.url
        finally:
            proxy.listener.close()

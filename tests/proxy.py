"""A man in the middle between a client and a server of the tests."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from psycopg.conninfo import conninfo_to_dict


class Proxy:
    """Forwards TCP to a Unix socket, until it is told otherwise.

    Args:
        target: Path of the socket of a server.

    Attributes:
        stalled: While it is set, all is taken and nothing answered.
        stall_at: A request with these bytes in it sets it.
        lose: A request with these bytes in it loses its connection; once.
        delay_seconds: How long each request and each answer is held.
        heard: Whether the server still got that request, so that only its answer was lost.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.stalled = threading.Event()
        self.stall_at: bytes | None = None
        self.lose: bytes | None = None
        self.heard = True
        self.delay_seconds = 0.0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.socket(socket.AF_UNIX) as server:
            server.connect(self.target)
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data or (ready is client and self._loses(data, server)):
                        return
                    if ready is client and self.stall_at and self.stall_at in data:
                        self.stalled.set()
                    time.sleep(self.delay_seconds)
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
def proxied_redis(redis_url: str) -> Iterator[tuple[Proxy, str]]:
    """Stand between clients and this Redis; yields the proxy, and the URL through it."""
    proxy = Proxy(unquote(urlsplit(redis_url).path))
    try:
        yield proxy, f"redis://127.0.0.1:{proxy.port}"
    finally:
        proxy.listener.close()


@contextmanager
def proxied(database_url: str) -> Iterator[tuple[Proxy, str]]:
    """Stand between clients and this database; yields the proxy, and the URL through it."""
    parts = conninfo_to_dict(database_url)
    proxy = Proxy(f"{parts['host']}/.s.PGSQL.{parts['port']}")
    place, _, options = database_url.partition("?")
    others = [option for option in options.split("&") if not option.startswith(("host=", "port="))]
    through = f"{place.replace('@/', f'@127.0.0.1:{proxy.port}/')}?{'&'.join(others)}".rstrip("?")
    try:
        yield proxy, through
    finally:
        proxy.listener.close()

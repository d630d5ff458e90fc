"""Real Redis, or Valkey."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from drain.embedded.addresses import directory_with_room_for, free_port
from drain.embedded.binaries import find_redis
from drain.embedded.guarded_server import GuardedServer
from drain.errors import EmbeddedError

_CONNECT_SECONDS = 5


class EmbeddedRedis(GuardedServer):
    """Redis or Valkey on a Unix socket.

    Args:
        directory: None for a temporary one.
        settings: Override the defaults.
        listen: Also on a free port of 127.0.0.1.
        port: Instead of a free one.
        bin_directory: None to search.
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
        self.port = port or (free_port() if listen else None)
        self.binary = find_redis(bin_directory)
        self._socket = directory_with_room_for("redis.sock", self.directory, self.scratch) / "redis.sock"

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0" if self.port else self._socket_url

    @property
    def _socket_url(self) -> str:
        return f"unix://{quote(str(self._socket))}?db=0"

    def launch(self) -> None:
        """Run the server.

        Raises:
            EmbeddedError: Another one runs in this directory.
        """
        if self._info():
            # It would take over the socket.
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
        """Return True once this server has loaded its data."""
        info = self._info()
        return info.get("process_id") == self.pid and not info.get("loading")

    def _info(self) -> dict[str, object]:
        once = Retry(NoBackoff(), 0)
        with redis.Redis.from_url(self._socket_url, socket_timeout=_CONNECT_SECONDS, retry=once) as client:
            try:
                return dict(client.info())
            except redis.RedisError:
                return {}

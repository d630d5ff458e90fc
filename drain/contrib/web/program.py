"""Server of `drain web`."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from drain.contrib.web.clients import BehindProxy
from drain.contrib.web.connections import Connection, ConnectionOfProxy
from drain.errors import ConfigError
from drain.formatting import visible

log = logging.getLogger(__name__)

# Threads that render pages: each may wait for one of the few sessions.
_THREADS = 8
_HEAD_BYTES = 16_384
_END_SECONDS = 3


def listen(host: str, port: int) -> socket.socket:
    """Listen on a port, 0 for a free one; ConfigError if unavailable."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listening = socket.create_server(address[:2], family=family)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "invalid host name"
        shown = visible(f"[{host}]" if ":" in host else host)
        raise ConfigError(
            f"cannot serve the page on {shown}:{port} ({reason}); choose another --host or --port"
        ) from error
    # asyncio omits it for sockets without an explicit protocol. Measured: without it, 40 ms more per
    # page, as head and body are sent separately.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def configure(app: ASGIApp, *, prefix: str = "", behind_proxy: bool = False) -> uvicorn.Config:
    """Return the configuration for `run`."""
    return uvicorn.Config(
        BehindProxy(app) if behind_proxy else app,
        access_log=False,
        date_header=True,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        http=ConnectionOfProxy if behind_proxy else Connection,
        lifespan="off",
        log_config=None,
        log_level="warning",
        loop="asyncio",
        proxy_headers=False,
        root_path=prefix,
        server_header=False,
        timeout_graceful_shutdown=_END_SECONDS,
        ws="none",
    )


def run(app: Starlette, listening: socket.socket, *, prefix: str = "", behind_proxy: bool = False) -> None:
    """Serve the application until SIGTERM or SIGINT.

    Args:
        prefix: Path that a proxy strips.
        behind_proxy: Trust its headers; only a proxy can reach the socket.
    """
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}{prefix}/"
    access = "read-only" if app.state.site.access.is_read_only else "read-write"
    log.info(
        "serving on %s, %s",
        address,
        access,
        extra={"event": "web_serving", "address": address, "access": access},
    )
    config = configure(app, prefix=prefix, behind_proxy=behind_proxy)
    asyncio.run(_Server(config, app).serve([listening]))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        await super().startup(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let a signal end the streams and then the program, with exit code 0."""
        before = {number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._app.state.site.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Not in the signal handler: this thread may hold the listeners' lock there.
        self._app.state.site.live.close()
        await super().shutdown(sockets)

    def _end(self, *_: Any) -> None:
        self.should_exit = True

"""HTTP port for `/metrics`, probes and other given paths."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from time import monotonic
from typing import Any, BinaryIO

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from drain.errors import ConfigError, PortTakenError
from drain.formatting import visible

# Connections without a request; concurrent answers, without probes'.
_UNREAD = 64
_ANSWERS = 32
_REQUEST_BYTES = 16_384
_REQUEST_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_CHECK_SECONDS = 0.5
_PROBES = ("/healthz", "/readyz")


@dataclass(frozen=True, slots=True)
class Answers:
    """Content of the answers.

    Attributes:
        unhealthy, unready: Return the reason, or None.
        metrics: Takes the Accept header; returns metrics and content type.
        more: By path prefix: take path suffix and query; return status and JSON.
    """

    unhealthy: Callable[[], str | None]
    unready: Callable[[], str | None]
    metrics: Callable[[str], tuple[bytes, str]] = field(default_factory=lambda: exposition(REGISTRY))
    more: Mapping[str, Callable[[str, str], tuple[int, bytes]]] = field(default_factory=dict)


class _Head:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.left = _REQUEST_BYTES
        self.close = file.close

    def readline(self, size: int) -> bytes:
        line = self._file.readline(min(size, self.left))
        self.left -= len(line)
        return line


class _Server(ThreadingHTTPServer):
    """Closes slow connections, and always answers probes.

    Probes send requests at once, so the longest silent connection makes room; their answers are quick, so not counted.
    """

    daemon_threads = True
    # The default, 5, leaves probes no place in a burst.
    request_queue_size = 128

    def __init__(self, address: tuple[Any, ...], family: socket.AddressFamily, handler: type) -> None:
        self.address_family = family
        # Deadlines, in order of arrival.
        self._unread: dict[socket.socket, float] = {}
        self._answered: dict[socket.socket, float] = {}
        self._answers = threading.BoundedSemaphore(_ANSWERS)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer's reverse DNS lookup may take a minute.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(unread := list(self._unread)) >= _UNREAD:
            self._unread.pop(unread[0], None)
            _cut(unread[0])
        self._unread[request] = monotonic() + _REQUEST_SECONDS
        super().process_request(request, client_address)

    @contextmanager
    def answering(self, request: Any, *, is_probe: bool) -> Iterator[bool]:
        """Admit a request; yield False if there are too many."""
        self._answered[request] = monotonic() + _ANSWER_SECONDS
        self._unread.pop(request, None)
        is_counted = not is_probe and self._answers.acquire(blocking=False)
        try:
            yield is_probe or is_counted
        finally:
            if is_counted:
                self._answers.release()

    def shutdown_request(self, request: Any) -> None:
        self._unread.pop(request, None)
        self._answered.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        now = monotonic()
        for request, deadline in [*self._unread.items(), *self._answered.items()]:
            if now > deadline:
                _cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: clients come and go."""


def _cut(request: socket.socket) -> None:
    """Shut down a connection: its thread reads EOF or fails."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def serve(host: str, port: int, answers: Answers) -> ThreadingHTTPServer:
    """Listen, and serve in a thread until `shutdown()`."""
    server = listen(host, port, answers)
    threading.Thread(target=server.serve_forever, args=[_CHECK_SECONDS], name="http", daemon=True).start()
    return server


def listen(host: str, port: int, answers: Answers) -> ThreadingHTTPServer:
    """Listen on a port; call `serve_forever()` here or in a fork.

    Clients have one second for a request of at most 16 KiB, and five for the answer. Of 64 connections without a
    request, the oldest makes room. Beyond 32 concurrent answers, only probes are answered.

    Args:
        host: Name or IP address; IPv4 is preferred.

    Raises:
        ConfigError: Cannot listen; PortTakenError if taken.
    """
    try:
        family, address = _address(host, port)
        return _Server(address, family, _handler(answers))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        shown = visible(f"[{host}]" if ":" in host else host)
        kind = PortTakenError if getattr(error, "errno", None) == errno.EADDRINUSE else ConfigError
        raise kind(
            f"cannot serve metrics on {shown}:{port} ({reason}); "
            "choose another --metrics-host or --metrics-port, or port 0 for none"
        ) from error


def _handler(answers: Answers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server: _Server

        def setup(self) -> None:
            super().setup()
            self.head = self.rfile = _Head(self.rfile)  # type: ignore[arg-type, assignment]

        def version_string(self) -> str:
            return "drain"

        def do_GET(self) -> None:
            if not self.head.left:
                self.send_error(431)
                return
            is_probe = self.path.partition("?")[0] in _PROBES
            with self.server.answering(self.request, is_probe=is_probe) as may_be_answered:
                if not may_be_answered:
                    self.send_error(503)
                    return
                accept = ",".join(self.headers.get_all("Accept", []))
                self._answer(*_reply(self.path, accept, answers))

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing: a probe comes every second."""

    return Handler


def exposition(registry: CollectorRegistry) -> Callable[[str], tuple[bytes, str]]:
    """Return a writer of metrics: Prometheus' text format, or OpenMetrics if accepted."""

    def expose(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    return expose


def _reply(target: str, accept: str, answers: Answers) -> tuple[int, bytes, str]:
    path, _, query = target.partition("?")
    if path == "/metrics":
        return (200, *answers.metrics(accept))
    if path in _PROBES:
        problem = answers.unhealthy() if path == "/healthz" else answers.unready()
        return 503 if problem else 200, f"{problem or 'ok'}\n".encode(), "text/plain"
    for start, answer in answers.more.items():
        if path.startswith(start):
            return *answer(path.removeprefix(start), query), "application/json"
    return 404, b"try /metrics, /healthz or /readyz\n", "text/plain"


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, address

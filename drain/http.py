"""One HTTP port for machines: `/metrics` for Prometheus, `/healthz` and `/readyz` for supervisors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from drain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Answers:
    """What the two probes ask: each returns None if all is well, or the reason why not."""

    unhealthy: Callable[[], str | None]
    unready: Callable[[], str | None]


def serve(host: str, port: int, answers: Answers) -> ThreadingHTTPServer:
    """Serve on a thread of its own until `shutdown()`.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, generate_latest(), CONTENT_TYPE_LATEST)
            elif path in ("/healthz", "/readyz"):
                problem = answers.unhealthy() if path == "/healthz" else answers.unready()
                self._answer(503 if problem else 200, f"{problem or 'ok'}\n".encode(), "text/plain")
            else:
                self._answer(404, b"try /metrics, /healthz or /readyz\n", "text/plain")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: a probe every second is not news."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"cannot serve metrics on {host}:{port} ({error.strerror}); "
            "choose another --metrics-port, or 0 for none"
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server

"""The health check of the image: sick is a process that answers so, or does not answer."""

import importlib.util
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType

import pytest

from tests.helpers import ROOT


@pytest.fixture(scope="module")
def healthcheck() -> ModuleType:
    spec = importlib.util.spec_from_file_location("healthcheck", ROOT / "deploy" / "healthcheck.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def answering(status: int, text: bytes) -> Iterator[int]:
    """A port that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_process_that_reports_healthy_is_healthy(healthcheck: ModuleType) -> None:
    with answering(200, b"ok\n") as port:
        assert healthcheck.sickness(port) is None


@pytest.mark.parametrize("variable", ["DRAIN_METRICS_PORT", "DRAIN_WORK_METRICS_PORT"])
def test_a_process_that_reports_unhealthy_is_unhealthy_with_its_reason(
    healthcheck: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
) -> None:
    with answering(503, b"the main loop has not responded for 61 s\n") as port:
        monkeypatch.setenv(variable, str(port))
        assert healthcheck.main() == 1
    assert capsys.readouterr().out == "the main loop has not responded for 61 s\n"


def test_a_process_that_accepts_but_never_answers_is_unhealthy(healthcheck: ModuleType) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        assert healthcheck.sickness(port, seconds=0.05) == f"port {port}: timed out"


def test_a_command_without_a_port_is_healthy(
    healthcheck: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    assert healthcheck.sickness(port) is None
    for text in ("0", ""):
        monkeypatch.setenv("DRAIN_METRICS_PORT", text)
        assert healthcheck.main() == 0

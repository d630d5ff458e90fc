"""The HTTP port, asked by clients of all kinds."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest

from drain.errors import ConfigError
from drain.service import http
from tests.helpers import PATIENCE_SECONDS, ask, free_port, wait_until

ANSWERS = http.Answers(unhealthy=lambda: None, unready=lambda: None)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CHECK_SECONDS", 0.02)


@contextmanager
def serving(host: str = "127.0.0.1", answers: http.Answers = ANSWERS) -> Iterator[int]:
    server = http.serve(host, 0, answers)
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def client(port: int, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=PATIENCE_SECONDS) as sock:
        yield sock


def all_of(sock: socket.socket) -> bytes:
    """What comes until the server closes; a connection that it resets has ended too."""
    received = b""
    with suppress(ConnectionResetError):
        while part := sock.recv(65536):
            received += part
    return received


def closed(sock: socket.socket) -> bool:
    return all_of(sock) == b""


def answers(port: int) -> bool:
    with suppress(OSError):
        return ask(port, "/healthz") == (200, "ok\n")
    return False


def test_head_requests_are_answered_without_a_body() -> None:
    with serving() as port, client(port) as sock:
        sock.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
        head, _, body = all_of(sock).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ")
    assert body == b""


def test_the_server_header_reveals_no_version() -> None:
    with serving() as port:
        for request in (
            b"GET /healthz HTTP/1.1\r\n\r\n",
            b"PUT / HTTP/1.1\r\n\r\n",
            b"BREW / HTTP/1.1\r\n\r\n",
        ):
            with client(port) as sock:
                sock.sendall(request)
                head = all_of(sock).partition(b"\r\n\r\n")[0]
            assert b"Server: drain\r\n" in head
            assert b"ython" not in head


def test_a_dribbling_client_is_cut_off_without_delaying_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_REQUEST_SECONDS", 0.3)
    with serving() as port, client(port) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        sock.settimeout(0.01)

        def is_cut() -> bool:
            try:
                sock.sendall(b"x")
                return sock.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        assert answers(port)
        wait_until(is_cut, PATIENCE_SECONDS)
        assert answers(port)


def test_a_probe_is_answered_however_many_clients_send_nothing() -> None:
    with serving() as port, ExitStack() as stack:
        idle = [stack.enter_context(client(port)) for _ in range(100)]
        for _ in range(25):
            assert answers(port)
            # The server has ended the connection that was silent for longest; its client comes again.
            assert closed(idle.pop(0))
            idle.append(stack.enter_context(client(port)))


def test_a_probe_is_answered_while_all_other_answers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ANSWERS", 1)
    asked, go_on = threading.Event(), threading.Event()

    def metrics(_accept: str) -> tuple[bytes, str]:
        asked.set()
        go_on.wait(PATIENCE_SECONDS)
        return b"one 1\n", "text/plain"

    with serving(answers=replace(ANSWERS, metrics=metrics)) as port, client(port) as first:
        first.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert asked.wait(PATIENCE_SECONDS)
        assert ask(port, "/metrics")[0] == 503
        assert answers(port)
        go_on.set()
        assert all_of(first).endswith(b"one 1\n")
        wait_until(lambda: ask(port, "/metrics")[0] == 200, PATIENCE_SECONDS)


def test_a_client_that_does_not_take_its_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ANSWERS", 1)
    monkeypatch.setattr(http, "_ANSWER_SECONDS", 0.3)
    asked, sizes = threading.Event(), iter([50_000_000])

    def metrics(_accept: str) -> tuple[bytes, str]:
        asked.set()
        return b"x" * next(sizes, 1), "text/plain"

    with serving(answers=replace(ANSWERS, metrics=metrics)) as port, client(port) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert asked.wait(PATIENCE_SECONDS)
        wait_until(lambda: ask(port, "/metrics") == (200, "x"), PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        lambda: b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        lambda: b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
        lambda: b"\0" * 20_000,
    ],
    ids=["line", "header", "headers", "zeros"],
)
def test_an_oversized_request_is_not_read_to_the_end(request_of: Callable[[], bytes]) -> None:
    with serving() as port:
        with client(port) as sock:
            with suppress(OSError):
                sock.sendall(request_of())
            assert b"200 OK" not in all_of(sock)
        assert answers(port)


def test_a_connection_reset_is_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as port:
        with client(port) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\n")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert answers(port)
    assert capfd.readouterr().err == ""


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 on this machine")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_the_host_may_be_an_address_of_ipv6(host: str) -> None:
    with serving(host) as port, client(port, "::1") as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert all_of(sock).endswith(b"ok\n")


def test_localhost_also_listens_on_ipv4() -> None:
    with serving("localhost") as port:
        assert answers(port)


@pytest.mark.parametrize(
    "host",
    [
        "nosuch.invalid",
        "a..b",
        "300.1.1.1",
        "192.0.2.1",
        "2001:db8::1",
        "::1%nosuch",
        "x\ny",
        "\0",
        "x" * 300,
    ],
)
def test_an_unusable_host_is_reported_on_one_line(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot serve metrics on") as caught:
        http.serve(host, free_port(), ANSWERS)

    assert str(caught.value).isprintable()


def metrics_for(accept: str) -> tuple[bytes, bytes]:
    """Head and body of the metrics for a client that accepts this."""
    with serving() as port, client(port) as sock:
        sock.sendall(f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = all_of(sock).partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text", "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5"],
)
def test_openmetrics_is_sent_to_clients_that_accept_it(accept: str) -> None:
    head, body = metrics_for(accept)
    assert b"Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8" in head
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", "text/plain;version=0.0.4", ",;=\x01", "a" * 9000]
)
def test_other_clients_get_the_text_format(accept: str) -> None:
    head, body = metrics_for(accept)
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8" in head
    assert b"# HELP drain_leader" in body
    assert b"# EOF" not in body

"""Connections of `drain web`, held by clients of all kinds."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from drain.contrib.web import connections, program
from tests.helpers import PATIENCE_SECONDS, wait_until
from tests.web_pages import served

HALF = [
    b"",
    b"GET / HTTP/1.1\r\nHost: ",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nsecret=",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET",
]


async def answer(request: Request) -> Response:
    await request.body()
    return PlainTextResponse("ok")


@contextmanager
def serving(*, behind_proxy: bool = False) -> Iterator[str]:
    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    with served(app, program.configure(app, behind_proxy=behind_proxy)) as address:
        yield address


@contextmanager
def client(address: str, sent: bytes) -> Iterator[socket.socket]:
    place = httpx.URL(address)
    with socket.create_connection((place.host, place.port or 80), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(sent)
        yield sock


def has_ended(sock: socket.socket) -> bool:
    """Read all that has arrived; True if the server has ended the connection."""
    sock.settimeout(0.01)
    with suppress(TimeoutError):
        try:
            while sock.recv(65536):
                pass
        except ConnectionResetError:
            return True
        return True
    return False


@pytest.mark.parametrize("sent", HALF, ids=["nothing", "half a head", "half a form", "half of the next head"])
@pytest.mark.parametrize("behind_proxy", [False, True], ids=["of one client", "of a proxy"])
def test_idle_connections_do_not_keep_clients_out(
    monkeypatch: pytest.MonkeyPatch, behind_proxy: bool, sent: bytes
) -> None:
    monkeypatch.setattr(connections.Connection, "most_of_a_client", 5)
    monkeypatch.setattr(connections, "CONNECTIONS", 10)
    monkeypatch.setattr(connections.ConnectionOfProxy, "most_of_a_client", 10)
    with serving(behind_proxy=behind_proxy) as address, ExitStack() as stack:
        held = [stack.enter_context(client(address, sent)) for _ in range(30)]
        assert httpx.get(address, timeout=PATIENCE_SECONDS).text == "ok"
        most = 10 if behind_proxy else 5
        wait_until(lambda: sum(not has_ended(each) for each in held) <= most)


def test_a_slow_request_head_is_cut_off_on_first_and_later_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with serving() as address:
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: "):
            with client(address, sent) as sock:
                wait_until(lambda sock=sock: has_ended(sock))  # type: ignore[misc]
        with client(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as sock:
            assert b"200 OK" in sock.recv(65536)

            def dribbles() -> bool:
                try:
                    sock.sendall(b"G")
                except OSError:
                    return True
                return has_ended(sock)

            wait_until(dribbles)
        assert httpx.get(address, timeout=PATIENCE_SECONDS).text == "ok"


def test_the_oldest_busy_connection_is_closed_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.Connection, "most_of_a_client", 3)

    async def stream(_scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"x", "more_body": True})  # type: ignore[operator]
        while (await receive())["type"] != "http.disconnect":  # type: ignore[operator]
            pass

    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    with served(stream, program.configure(stream)) as address, ExitStack() as stack:
        held = []
        for _ in range(4):
            sock = stack.enter_context(client(address, request))
            assert b"200 OK" in sock.recv(65536)
            held.append(sock)
        wait_until(lambda: has_ended(held[0]))
        assert not any(has_ended(each) for each in held[1:])

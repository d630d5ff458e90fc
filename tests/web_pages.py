"""The page of `drain web` on a port of its own, in this process: a browser without a screen visits it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import httpx
import uvicorn

from drain.config import Settings
from drain.web import application
from tests.helpers import NAMESPACE, PATIENCE_SECONDS, wait_until

TOKEN = "a token that nobody guesses"


class Visitor:
    """Somebody with a browser: keeps cookies, and sends forms as the page has them."""

    def __init__(self, client: httpx.Client, prefix: str = "") -> None:
        self.client = client
        self.prefix = prefix

    def get(self, path: str, status: int = 200, **options: Any) -> str:
        """Text of a page, with this status."""
        answer = self.client.get(self.prefix + path, **options)
        assert answer.status_code == status, answer.text
        return answer.text

    def log_in(self, name: str = "Anna", token: str = TOKEN) -> None:
        assert self.post("/login", {"name": name, "token": token}, of="/login").status_code == 303

    def post(self, path: str, fields: Mapping[str, Any] | None = None, *, of: str = "/") -> httpx.Response:
        """Answer to a form that stands on the page `of`."""
        page = self.client.get(self.prefix + of).text
        secret = re.search(r'name="secret" value="([^"]+)"', page)
        assert secret, f"no form on {of}"
        return self.client.post(
            self.prefix + path,
            data={**(fields or {}), "secret": secret[1]},
            headers={"Origin": str(self.client.base_url).rstrip("/")},
        )


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application on a port of its own, for as long as the block runs; gives its address."""
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=[[listening]], daemon=True)
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        try:
            yield f"http://localhost:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_SECONDS)


@contextmanager
def browsing(app: Any, prefix: str = "") -> Iterator[Visitor]:
    """Visit an application, under its prefix."""
    with served(app) as address, httpx.Client(base_url=address, timeout=PATIENCE_SECONDS) as client:
        yield Visitor(client, prefix)


@contextmanager
def visitor(
    database_url: str, redis_url: str = "", *, token: str | None = TOKEN, **options: Any
) -> Iterator[Visitor]:
    """Visit the page of these servers for as long as the block runs."""
    settings = Settings(database_url=database_url, redis_url=redis_url, namespace=NAMESPACE)
    app = application(settings, token=token, **options)
    with closing(app.state.site), browsing(app) as browser:
        yield browser

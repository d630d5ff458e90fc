"""The page of `drain web` on a port of its own, in this process: a browser without a screen visits it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import uvicorn
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from drain.config import Settings
from drain.contrib.web import application, program
from tests.helpers import NAMESPACE, PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

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

    def post(
        self,
        path: str,
        fields: Mapping[str, Any] | None = None,
        *,
        of: str = "/",
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Answer to a form that stands on the page `of`."""
        return self.send(path, {**(fields or {}), "secret": self.secret(of)}, headers)

    def secret(self, of: str = "/login") -> str:
        """What the forms of a page have to send back."""
        found = re.search(r'name="secret" value="([^"]+)"', self.client.get(self.prefix + of).text)
        assert found, f"no form on {of}"
        return found[1]

    def send(
        self, path: str, fields: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Answer to a form of exactly these fields."""
        origin = str(self.client.base_url).rstrip("/")
        return self.client.post(
            self.prefix + path, data=dict(fields), headers={"Origin": origin, **(headers or {})}
        )

    def confirm(self, path: str, fields: Mapping[str, Any] | None = None, *, of: str) -> httpx.Response:
        """Answer to a form of the page `of`, and to the question that comes first."""
        asked = self.post(path, fields, of=of)
        assert asked.status_code == 200, asked.text
        jobs = re.search(r'name="confirmed" value="(\d+)"', asked.text)
        assert jobs, asked.text
        return self.post(path, {**(fields or {}), "confirmed": jobs[1]}, of=of)


@contextmanager
def served(app: Any, config: uvicorn.Config | None = None) -> Iterator[str]:
    """Serve an application on a port of its own, for as long as the block runs; gives its address."""
    server = uvicorn.Server(config or uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    with program.listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=[[listening]], daemon=True)
        thread.start()
        wait_until(lambda: server.started or not thread.is_alive())
        try:
            yield f"http://localhost:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_SECONDS)


@contextmanager
def dashboard(database_url: str, redis_url: str, token: str = TOKEN, **options: Any) -> Iterator[str]:
    """Serve the page of these servers for a browser, for as long as the block runs; gives its address."""
    settings = Settings(database_url=database_url, redis_url=redis_url, namespace=NAMESPACE)
    app = application(settings, token=token, **options)
    with closing(app.state.site), served(app) as address:
        yield address


def log_in(page: Page, token: str = TOKEN) -> None:
    """Sign in as a user with write access."""
    page.goto("/login")
    page.get_by_label("Your name").fill("anna")
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/login" not in url)


@contextmanager
def browsing(app: Any, prefix: str = "", config: uvicorn.Config | None = None) -> Iterator[Visitor]:
    """Visit an application, under its prefix."""
    with served(app, config) as address, httpx.Client(base_url=address, timeout=PATIENCE_SECONDS) as client:
        yield Visitor(client, prefix)


@contextmanager
def visitor(
    database_url: str,
    redis_url: str = "",
    *,
    token: str | None = TOKEN,
    behind_proxy: bool = False,
    **options: Any,
) -> Iterator[Visitor]:
    """Visit the page of these servers, served as `drain web` does, for as long as the block runs."""
    settings = Settings(database_url=database_url, redis_url=redis_url, namespace=NAMESPACE)
    app = application(settings, token=token, **options)
    config = program.configure(app, behind_proxy=behind_proxy)
    with browsing(app, config=config) as browser, closing(app.state.site):
        yield browser


@contextmanager
def away(database_url: str) -> Iterator[None]:
    """Let PostgreSQL refuse each connection to a database for as long as the block runs, and end those there are."""
    name = conninfo_to_dict(database_url)["dbname"]
    allow = SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    with psycopg.connect(make_conninfo(database_url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(allow.format(Identifier(str(name)), SQL("false")))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        try:
            yield
        finally:
            connection.execute(allow.format(Identifier(str(name)), SQL("true")))

"""`drain web` in other applications: the code of the page of the documentation, under its prefix."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
from starlette.requests import Request

from tests import pages
from tests.helpers import PATIENCE_SECONDS, ROOT, environment, stage_jobs
from tests.web_pages import Visitor, browsing

PAGE = pages.DOCS / "operations" / "web.md"
PREFIX = "/admin/jobs"

# A project with users and sessions; a stranger asks, then somebody of the staff; then an address of Django's own.
DJANGO = """
import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["localhost"], SECRET_KEY="x", ROOT_URLCONF="shop_urls",
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
)
import sys, types
sys.modules["shop_urls"] = types.ModuleType("shop_urls")
sys.modules["shop_urls"].urlpatterns = []
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
anna = User.objects.create_user("anna", is_staff=True)
session = SessionStore()
session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(anna.pk), "django.contrib.auth.backends.ModelBackend"
session[HASH_SESSION_KEY] = anna.get_session_auth_hash()
session.save()

import asyncio, httpx, shop_asgi

async def visit():
    transport = httpx.ASGITransport(app=shop_asgi.application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        print((await client.get("/admin/jobs/")).status_code)
        client.cookies.set("sessionid", session.session_key)
        answer = await client.get("/admin/jobs/queues/mail")
        print(answer.status_code, "<span>anna</span>" in answer.text, "/queues/mail/pause" in answer.text)
        print((await client.get("/nothing")).status_code)

asyncio.run(visit())
"""


def login(request: Request) -> None:
    """The login of the shop."""
    request.session["staff"] = "anna"


@pytest.fixture(autouse=True)
def files(
    tmp_path: Path, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The files of the page, importable, and a queue in the database."""
    for block in pages.blocks(PAGE):
        if block.language == "python":
            (tmp_path / block.title).write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in environment(database_url, redis_url).items():
        monkeypatch.setenv(name, text)
    stage_jobs(database_url, queue="mail")
    yield
    for name in ("shop_fastapi", "shop_flask"):
        if (module := sys.modules.pop(name, None)) is not None:
            jobs = getattr(module, "jobs", None)
            if jobs is not None:
                jobs.state.site.close()


def test_fastapi_decides_who_may_read_and_write() -> None:
    shop: Any = import_module("shop_fastapi")
    shop.app.add_api_route("/login", login)
    with browsing(shop.app, PREFIX) as browser:
        assert "This page is private" in browser.get("/", status=403)
        browser.client.get("/login")
        assert "<span>anna</span>" in browser.get("/queues/mail")
        assert browser.post("/queues/mail/pause", of="/queues/mail").status_code == 303


@pytest.mark.usefixtures("processes")
def test_django_lets_its_staff_read_and_write(tmp_path: Path, database_url: str, redis_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DJANGO],
        cwd=tmp_path,
        env=environment(database_url, redis_url, PYTHONPATH=f"{tmp_path}:{ROOT}"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["403", "200", "True", "True", "404"]


def test_flask_shows_the_page_through_an_adapter() -> None:
    pytest.importorskip("a2wsgi")
    shop: Any = import_module("shop_flask")

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with make_server("127.0.0.1", 0, shop.app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
        thread.start()
        address = f"http://localhost:{server.server_port}"
        with httpx.Client(base_url=address, timeout=PATIENCE_SECONDS) as client:
            browser = Visitor(client, PREFIX)
            page = browser.get("/")
            assert f'href="{PREFIX}/queues/mail"' in page
            assert "data-stream" not in page
            assert "1 due" in browser.get("/queues/mail")
        server.shutdown()
        thread.join(PATIENCE_SECONDS)

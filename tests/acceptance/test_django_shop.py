"""The shop of `examples/django_shop`: its own tests, and the whole way of an order through real processes."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.cookiejar import CookieJar
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from drain.embedded import Services
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    Command,
    drain_command,
    environment,
    free_port,
    query,
    wait_until,
)

pytest.importorskip("django")

SHOP = ROOT / "examples" / "django_shop"
MANAGE = "import runpy; runpy.run_path('manage.py', run_name='__main__')"
CLOSINGS = """
SELECT total::text, (SELECT array_agg(id) FROM shop_order WHERE closing_id = shop_closing.id) FROM shop_closing
"""


class Browser:
    """A customer's browser, with its cookies."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self.opener = urllib.request.build_opener(cookies, urllib.request.ProxyHandler({}))

    def open(self, address: str, form: dict[str, str] | None = None) -> tuple[str, str]:
        """Address and text of the page that is shown in the end."""
        data = urlencode(form).encode() if form else None
        with self.opener.open(address, data, timeout=PATIENCE_SECONDS) as page:
            return page.url, page.read().decode()

    def is_open(self) -> bool:
        try:
            return bool(self.open(self.address))
        except urllib.error.URLError:
            return False

    def buy(self, article: str, price: str) -> str:
        """Place an order, and return the address of its page."""
        _, page = self.open(self.address)
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        form = {"article": article, "price": price, "csrfmiddlewaretoken": token}
        return self.open(f"{self.address}/", form)[0]

    def shows(self, address: str, text: str) -> bool:
        return text in self.open(address)[1]


@pytest.fixture
def env(servers: Services, redis_url: str) -> Iterator[dict[str, str]]:
    """Environment of the shop's processes, with an empty database of its own."""
    name, administrator = f"test_{uuid4().hex}", servers.postgres.url_of("postgres")
    query(administrator, f"CREATE DATABASE {name}")
    path = os.pathsep.join([str(SHOP), str(ROOT)])
    yield environment(servers.postgres.url_of(name), redis_url, PYTHONPATH=path)
    query(administrator, f"DROP DATABASE {name} WITH (FORCE)")


def manage(env: dict[str, str], *words: str) -> str:
    """What a command writes, which has to succeed."""
    done = subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=SHOP,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def running(env: dict[str, str], *words: str) -> AbstractContextManager[Command]:
    """A command that runs for as long as the block."""
    return drain_command(*words, env=env, program=MANAGE, cwd=SHOP)


def test_the_tests_of_the_shop_pass(env: dict[str, str]) -> None:
    assert "No changes detected" in manage(env, "makemigrations", "--check", "--dry-run")
    written = manage(env, "test")
    assert re.search(r"^Ran [5-9] tests in .*\n\nOK$", written, re.MULTILINE), written


def test_an_order_is_processed_end_to_end(env: dict[str, str]) -> None:
    manage(env, "migrate")
    port = free_port()
    browser = Browser(port)
    with running(env, "runserver", "--noreload", str(port)) as site:
        wait_until(lambda: browser.is_open() or site.poll() is not None)
        paid, refused = browser.buy("tea", "12.50"), browser.buy("gold", "5000")
        assert browser.shows(paid, "Payment: READY")
        with (
            running(env, "drain_run", "--metrics-port", "0"),
            running(env, "drain_work") as workers,
        ):
            wait_until(lambda: browser.shows(paid, "Charged: 12.50"))
            wait_until(lambda: browser.shows(refused, "Your order was not paid."))
            wait_until(lambda: not browser.shows(paid, "on its way"))
            wait_until(lambda: "Subject: Receipt of order 1: tea" in workers.output)

            run_now = [sys.executable, "-m", "drain", "cron", "run", "shop.tasks.close_day"]
            subprocess.run(run_now, cwd=SHOP, env=env, check=True, timeout=PATIENCE_SECONDS)
            wait_until(lambda: query(env["DRAIN_DATABASE_URL"], CLOSINGS))
    assert query(env["DRAIN_DATABASE_URL"], CLOSINGS) == [("12.50", [1])]

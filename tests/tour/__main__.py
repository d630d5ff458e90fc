"""Run the shop for a while, and take a picture of each page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drain import queues
from drain.config import Settings
from drain.contrib.web import application
from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.embedded import Services, services
from tests.chromium import NARROW, WIDE, chromium, tab
from tests.helpers import ROOT, wait_until
from tests.tour import jobs
from tests.web_pages import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = ROOT / "docs" / "images"
TOKEN = "the token of the tour"
ORDERS = 600
# Wide pictures: name, path of the page.
PAGES = {
    "overview": "/",
    "queue": "/queues/payments",
    "dead": "/dead",
    "search": "/search?q=customer-7",
    "cron": "/cron",
    "workers": "/workers",
    "bulk": "/bulk",
    "statistics": "/statistics/page",
}
_DEAD = "SELECT id FROM dead_jobs WHERE job_name = 'shop.payments.charge' ORDER BY id LIMIT 1"
_RUNNING = (
    "SELECT id FROM inflight_jobs WHERE job_name = 'shop.exports.export_orders' AND claimed_at IS NOT NULL"
)
_SETTLED = """
SELECT NOT EXISTS (SELECT FROM staged_jobs)
    AND NOT EXISTS (SELECT FROM inflight_jobs WHERE queue <> 'exports' OR claimed_at IS NULL)
"""


def main() -> None:
    """Take all pictures; those of before are replaced."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(services(durable=False))
        url = servers.postgres.url_of("postgres")
        schema.install(url)
        connection = stack.enter_context(closing(postgres.connect(url, "tour")))
        stack.enter_context(running(servers, url, "run", "--metrics-port", "0"))
        stack.enter_context(running(servers, url, "work", "--processes", "2", "--threads", "2"))
        trade(connection)
        do_bulk_work(servers, url, directory)
        settings = Settings(database_url=url, redis_url=servers.redis_url)
        app = application(settings, token=TOKEN, statistics=directory / "stats.html")
        stack.enter_context(closing(app.state.site))
        address = stack.enter_context(served(app))
        take_pictures(stack.enter_context(chromium()), address, connection)


def environment(servers: Services, url: str) -> dict[str, str]:
    """The settings of all programs."""
    given = {"DRAIN_DATABASE_URL": url, "DRAIN_REDIS_URL": servers.redis_url, "DRAIN_JOBS": "tests.tour.jobs"}
    return {**os.environ, **given}


@contextmanager
def running(servers: Services, url: str, *words: str) -> Iterator[None]:
    """Run a program for as long as the block runs."""
    command = [sys.executable, "-m", "drain", *words]
    with subprocess.Popen(command, env=environment(servers, url), cwd=ROOT) as program:
        try:
            yield
        finally:
            program.send_signal(signal.SIGTERM)


def trade(connection: Connection) -> None:
    """Stage the jobs of a day, some of which wait on purpose; returns when those that can run have run."""
    with connection.transaction():
        jobs.send_receipt.stage_many(connection, [(number,) for number in range(1, ORDERS)])
        jobs.charge.stage_many(connection, [(number,) for number in range(1, ORDERS)])
        jobs.index_product.stage_many(connection, [(number,) for number in range(1, ORDERS)])
        jobs.export_orders.stage(connection, "customer-7", 100_000)
    wait_until(lambda: connection.execute(_SETTLED).fetchone() == (True,))
    with connection.transaction():
        queues.set(connection, "payments", running=2, rate="5/min", running_per_key=1)
        queues.pause(connection, queue="search", reason="the cluster is upgraded")
        for number in range(1, ORDERS):
            jobs.charge.options(key=f"customer-{number % 9}").stage(connection, number * 17 + 1)
            jobs.index_product.options(tag="products.imported").stage(connection, number * 41 + 1)
        jobs.send_receipt.options(run_in=3600).stage(connection, 1)


def do_bulk_work(servers: Services, url: str, directory: Path) -> None:
    """Let Spark stage some jobs, and write the page of statistics."""
    source = directory / "orders.csv"
    source.write_text("order_id\n" + "".join(f"{number}\n" for number in range(2000, 2200)))
    commands: list[Sequence[str]] = [
        (
            "backfill",
            str(source),
            "--job",
            "shop.mail.send_receipt",
            "--args",
            "order_id",
            "--run-id",
            "receipts",
        ),
        ("stats", "--since", "1d", "--html", str(directory / "stats.html")),
    ]
    for words in commands:
        subprocess.run(
            [sys.executable, "-m", "drain", *words], env=environment(servers, url), cwd=ROOT, check=True
        )


def take_pictures(browser: Browser, address: str, connection: Connection) -> None:
    """Visit the pages, wide and light, and some of them on a phone and in the dark."""
    (dead,) = connection.execute(_DEAD).fetchone() or (0,)
    (hanging,) = connection.execute(_RUNNING).fetchone() or (0,)
    with tab(browser, address, WIDE) as page:
        log_in(page)
        for name, path in {**PAGES, "job": f"/jobs/{dead}"}.items():
            take(page, name, path)
        take(page, "job-running", f"/jobs/{hanging}")
        page.goto(f"/workers/stack/{hanging}")
        page.locator("main form button").first.click()
        page.locator("main pre, main table").first.wait_for()
        page.screenshot(path=PICTURES / "stack.png")
    with tab(browser, address, NARROW, dark=True) as page:
        take(page, "overview-phone", "/")


def log_in(page: Page) -> None:
    """Log in as somebody who may write."""
    page.goto("/login")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/login" not in url)


def take(page: Page, name: str, path: str) -> None:
    """Take the picture of one page."""
    answer = page.goto(path)
    assert answer is not None
    assert answer.ok, f"{path}: {answer.status}"
    page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()

"""Run the shop for a while, and take the pictures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drain import queues
from drain.config import Settings
from drain.contrib.web import application
from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.embedded import Services, services
from tests.chromium import WIDE, chromium, tab
from tests.helpers import ROOT, wait_until
from tests.tour import history, jobs
from tests.web_pages import TOKEN, log_in, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = ROOT / "docs" / "images"
PHONE = (390, 844)
# Pages by the name of their picture; those of single jobs are added.
PAGES = {
    "overview": "/",
    "queue": "/queues/payments",
    "dead": "/dead",
    "search": "/search?q=queue:payments+state:dead",
    "cron": "/cron",
    "workers": "/workers",
    "bulk": "/bulk",
    "statistics": "/statistics/page",
    "design": "/design",
}
# Of each page there is a picture of its own size and theme; these few are in the documentation.
OF_THE_DOCS = {"overview-dark", "overview-phone", "overview-phone-dark", "job-phone", "job-dark"}
_DEAD = "SELECT id FROM dead_jobs WHERE job_name = 'shop.payments.charge' ORDER BY died_at DESC LIMIT 1"
_RUNNING = (
    "SELECT id FROM inflight_jobs WHERE job_name = 'shop.exports.export_orders' AND claimed_at IS NOT NULL"
)


def main() -> None:
    """Take the pictures of the documentation, or with a directory all of them, in both sizes and themes."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    (directory or PICTURES).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(services(durable=False))
        url = servers.postgres.url_of("postgres")
        schema.install(url)
        connection = stack.enter_context(closing(postgres.connect(url, "tour")))
        history.write(connection)
        stack.enter_context(running(servers, url, "run", "--metrics-port", "0"))
        stack.enter_context(running(servers, url, "work", "--processes", "2", "--threads", "2"))
        trade(connection)
        do_bulk_work(servers, url, scratch)
        settings = Settings(database_url=url, redis_url=servers.redis_url)
        app = application(settings, token=TOKEN, statistics=scratch / "stats.html")
        stack.enter_context(closing(app.state.site))
        address = stack.enter_context(served(app))
        take_pictures(stack.enter_context(chromium()), address, connection, directory)


def environment(servers: Services, url: str) -> dict[str, str]:
    """The settings of all programs."""
    given = {"DRAIN_DATABASE_URL": url, "DRAIN_REDIS_URL": servers.redis_url, "DRAIN_JOBS": "tests.tour.shop"}
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
    """Stage jobs of now: some run, some wait on purpose."""
    with connection.transaction():
        queues.set(connection, "payments", running=8, rate="30/min", running_per_key=1)
        queues.pause(connection, queue="search", reason="the cluster is being upgraded")
        jobs.export_orders.options(tag="back office", key="customer-7").stage(
            connection, "customer-7", 100_000
        )
        for number in range(240):
            jobs.charge.options(key=f"customer-{number % 9}", tag="checkout").stage(
                connection, 50_001 + number
            )
            jobs.index_product.options(tag="catalogue").stage(connection, number + 1)
        for number in range(12):
            jobs.send_receipt.options(run_in=3600, tag="checkout").stage(connection, 50_001 + number)
    wait_until(lambda: connection.execute(_RUNNING).fetchone())


def do_bulk_work(servers: Services, url: str, directory: Path) -> None:
    """Let Spark stage some jobs, and write the page of statistics."""
    source = directory / "orders.csv"
    source.write_text("order_id\n" + "".join(f"{number}\n" for number in range(2000, 2200)))
    words = ["--job", "shop.mail.send_receipt", "--args", "order_id", "--queue", "bulk"]
    for command in (
        ["backfill", str(source), "--run-id", "receipts-of-november", *words],
        ["stats", "--since", "1d", "--html", f"{directory}/stats.html"],
    ):
        program = [sys.executable, "-m", "drain", *command]
        subprocess.run(program, env=environment(servers, url), cwd=ROOT, check=True)


def take_pictures(browser: Browser, address: str, connection: Connection, directory: Path | None) -> None:
    """Visit all pages in each size and theme."""
    (dead,) = connection.execute(_DEAD).fetchone() or (0,)
    (hanging,) = connection.execute(_RUNNING).fetchone() or (0,)
    pages = {**PAGES, "job": f"/jobs/{dead}", "job-running": f"/jobs/{hanging}"}
    pages["bulk-action"] = retry_a_group(browser, address)
    # The live page counts the past in a few seconds.
    with tab(browser, address, WIDE) as page:
        page.goto("/")
        page.locator("svg.chart").wait_for()
    for suffix, size, dark in (
        ("", WIDE, False),
        ("-dark", WIDE, True),
        ("-phone", PHONE, False),
        ("-phone-dark", PHONE, True),
    ):
        with tab(browser, address, size, dark=dark) as page:
            log_in(page)
            for name, path in pages.items():
                if directory or not suffix or f"{name}{suffix}" in OF_THE_DOCS:
                    take(page, f"{name}{suffix}", path, directory)
    with tab(browser, address, WIDE) as page:
        log_in(page)
        page.goto(f"/workers/stack/{hanging}")
        page.locator("main form[method=post] button").first.click()
        page.locator("main table:visible").first.wait_for()
        page.screenshot(path=(directory or PICTURES) / "stack.png")


def retry_a_group(browser: Browser, address: str) -> str:
    """Retry the dead jobs of the search; returns the page of the bulk action, once it has ended."""
    with tab(browser, address) as page:
        log_in(page)
        page.goto("/dead")
        page.get_by_role("link", name="shop.search.index_product").last.click()
        page.get_by_label("of the group").check()
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("button", name="Yes").click()
        page.locator(".ended").wait_for()
        return page.url.removeprefix(address)


def take(page: Page, name: str, path: str, directory: Path | None) -> None:
    """Take the picture of one page, of its full height."""
    answer = page.goto(path)
    assert answer is not None
    assert answer.ok, f"{path}: {answer.status}"
    page.screenshot(path=(directory or PICTURES) / f"{name}.png", full_page=True)


if __name__ == "__main__":
    main()

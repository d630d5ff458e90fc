"""Five on-call tasks on `drain web`, in Chromium: the clicks that each takes from the overview."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from drain import queues, stage_many
from drain.database import postgres
from tests.chromium import chromium, tab
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    environment,
    query,
    wait_until,
)
from tests.servers import _database
from tests.tour import history, jobs
from tests.web_pages import dashboard, log_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

MILLISECONDS = PATIENCE_SECONDS * 1000
LATE, CUSTOMER = 400, "customer-7"
RUNNING = (
    "SELECT id FROM inflight_jobs WHERE job_name = 'shop.exports.export_orders' AND claimed_at IS NOT NULL"
)
DECLINED = "SELECT count(*) FROM dead_jobs WHERE last_error->>'type' LIKE '%%CardDeclinedError'"


@dataclass(slots=True)
class Night:
    """A visit that starts on the overview, with its number of clicks."""

    page: Page
    database_url: str
    clicks: int = 0

    def click(self, where: Locator) -> None:
        where.first.click(timeout=MILLISECONDS)
        self.clicks += 1

    def link(self, name: str) -> None:
        self.click(self.page.get_by_role("link", name=name, exact=True))

    def button(self, name: str) -> None:
        self.click(self.page.locator("main").get_by_role("button", name=name))

    def sees(self, text: str) -> None:
        self.page.locator("main").filter(has_text=text).wait_for(timeout=MILLISECONDS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def shop(servers: Any, template: str) -> Iterator[str]:
    """URL of a shop with three hours of history: a rate limits its mail, and an export hangs."""
    with ExitStack() as stack:
        url = stack.enter_context(_database(servers, template))
        connection = stack.enter_context(closing(postgres.connect(url, "shop")))
        history.write(connection)
        with connection.transaction():
            queues.set(connection, "mail", rate="60/min", burst=5)
            stage_many(connection, jobs.send_receipt, [(number,) for number in range(LATE)])
            jobs.export_orders.options(key=CUSTOMER).stage(connection, CUSTOMER, 1_000_000)
        env = environment(url, servers.redis_url, DRAIN_JOBS="tests.tour.jobs", PYTHONPATH=str(ROOT))
        stack.enter_context(drain_command("run", "--metrics-port", "0", env=env))
        stack.enter_context(drain_command("work", "--threads", "2", env=env))
        wait_until(lambda: query(url, RUNNING), PATIENCE_SECONDS)
        yield url


@pytest.fixture(scope="module")
def address(servers: Any, shop: str) -> Iterator[str]:
    with dashboard(shop, servers.redis_url) as found:
        yield found


@pytest.fixture
def night(browser: Browser, address: str, shop: str) -> Iterator[Night]:
    with tab(browser, address) as page:
        log_in(page)
        yield Night(page, shop)


def test_why_mail_is_late_takes_one_click(night: Night) -> None:
    night.link("mail")
    night.sees("rate-limited")
    night.sees("60/min")
    assert night.clicks == 1


def test_whether_the_backlog_clears_by_morning_takes_one_click(night: Night) -> None:
    night.link("mail")
    night.sees("Clears in")
    assert night.clicks == 1


def test_retrying_failures_of_one_kind_takes_five_clicks(night: Night) -> None:
    night.link("Failures")
    row = night.page.get_by_role("row").filter(has_text="CardDeclinedError")
    night.click(row.get_by_role("link"))
    night.click(night.page.get_by_label("of the group"))
    night.button("Retry")
    night.button("Yes")
    night.sees("Completed")
    assert night.clicks == 5
    wait_until(lambda: query(night.database_url, DECLINED) == [(0,)], PATIENCE_SECONDS)


def test_pausing_one_customer_takes_three_clicks(night: Night) -> None:
    night.link("payments")
    night.click(night.page.get_by_text("Pause …"))
    night.page.get_by_label("Key (optional)").fill(CUSTOMER)
    night.button("Pause")
    night.sees(f"Resume queue payments key {CUSTOMER}")
    assert night.clicks == 3
    pauses = query(night.database_url, "SELECT queue, key, reason FROM queue_pauses")
    assert pauses == [("payments", CUSTOMER, "paused on the page (anna)")]


def test_stopping_a_job_that_hangs_takes_three_clicks(night: Night) -> None:
    ((job_id,),) = query(night.database_url, RUNNING)
    night.link("Workers")
    night.link(str(job_id))
    night.button("Cancel job")
    night.sees("Cancelled")
    assert night.clicks == 3
    wait_until(lambda: not query(night.database_url, RUNNING), PATIENCE_SECONDS)

"""The example `fastapi_shop`: its own suite, and one order the whole way, with programs that really run."""

import asyncio
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from fastapi_shop.pages import app, lifespan
from httpx import ASGITransport, AsyncClient

from tests.helpers import PATIENCE_SECONDS, ROOT, drain_command, environment, leading, query, wait_until

SUITE = ROOT / "examples" / "fastapi_shop" / "tests"
MODULE = "fastapi_shop.jobs"
BASKET = {"email": "ada@example.org", "cents": 4200, "card": "visa-1"}


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return environment(database_url, redis_url, DRAIN_JOBS=MODULE, PYTHONPATH=f"{ROOT}:{ROOT / 'examples'}")


def test_the_shops_own_suite_passes_and_cleans_up(env: dict[str, str], database_url: str) -> None:
    options = (
        "-o",
        "addopts=",
        "-p",
        "drain.contrib.testing.plugin",
        "-p",
        "no:django",
        "-p",
        "no:cacheprovider",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, SUITE],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout
    assert query(database_url, "SELECT to_regclass('orders'), count(*) FROM finished_jobs") == [(None, 0)]


class Customer:
    """Somebody in front of the pages."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def order(self) -> int:
        answer = await self._client.post("/orders", json=BASKET)
        assert answer.status_code == 201
        return int(answer.json()["id"])

    async def look(self, order_id: int, wait: float = 0) -> dict[str, Any]:
        answer = await self._client.get(f"/orders/{order_id}", params={"wait": wait})
        assert answer.status_code == 200
        return dict(answer.json())

    async def look_until(self, order_id: int, *path: str, is_: str) -> None:
        """Look at the page until what it shows there is this."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                shown: Any = await self.look(order_id)
                for name in path:
                    shown = shown[name]
                if shown == is_:
                    return
                await asyncio.sleep(0.05)


def test_an_order_is_processed_end_to_end(
    env: dict[str, str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in env.items():
        monkeypatch.setenv(name, text)

    async def shop() -> None:
        async with lifespan(app), AsyncClient(transport=ASGITransport(app), base_url="http://shop") as client:
            await buy(Customer(client), env, database_url)

    asyncio.run(shop())


async def buy(customer: Customer, env: dict[str, str], database_url: str) -> None:
    order_id = await customer.order()
    assert (await customer.look(order_id))["payment"]["state"] == "waiting"
    # Whoever holds the row lets the payment last until its progress has been seen.
    with psycopg.connect(database_url) as holding, leading(env), drain_command("work", env=env):
        holding.execute("SELECT FROM orders WHERE id = %s FOR UPDATE", [order_id])
        await customer.look_until(order_id, "payment", "progress", is_="waiting for the bank")
        holding.rollback()
        seen = await customer.look(order_id, wait=10)
        (key,) = [key for (key,) in query(database_url, "SELECT reference FROM payments")]
        assert seen == {
            "id": order_id,
            "state": "paid",
            "payment": {"state": "finished", "progress": None, "result": {"reference": key}, "error": None},
        }
        wait_until(lambda: query(database_url, "SELECT receipt_sent FROM payments") == [(True,)])

        with drain_command("cron", "run", f"{MODULE}.close_day", env=env) as command:
            assert command.wait(PATIENCE_SECONDS) == 0
        await customer.look_until(order_id, "state", is_="closed")
    finished = query(database_url, "SELECT job_name FROM finished_jobs ORDER BY id")
    assert finished == [(f"{MODULE}.{name}",) for name in ("take_payment", "send_receipt", "close_day")]
    assert query(database_url, "SELECT count(*) FROM dead_jobs") == [(0,)]

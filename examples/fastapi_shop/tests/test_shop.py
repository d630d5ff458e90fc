"""The shop, from the order to the close of the day."""

import pytest
from fastapi_shop import bank
from fastapi_shop.jobs import close_day, refund, send_receipt, take_payment
from httpx import AsyncClient

from drain.contrib.testing import Staged

pytestmark = pytest.mark.anyio

BASKET = {"email": "ada@example.org", "cents": 4200, "card": "visa-1"}


async def place(client: AsyncClient, **other: object) -> str:
    """Order something; returns the path of the page of the order."""
    answer = await client.post("/orders", json=BASKET | other)
    assert answer.status_code == 201
    return f"/orders/{answer.json()['id']}"


async def test_an_order_is_paid_and_has_a_receipt(client: AsyncClient, staged: Staged) -> None:
    page = await place(client)
    staged.assert_one(take_payment, queue="payments")
    staged.none(send_receipt)

    ran = await staged.arun(check=True)
    assert [each.job_name.rpartition(".")[2] for each in ran] == ["take_payment", "send_receipt"]
    seen = (await client.get(page)).json()
    assert seen["state"] == "paid"
    assert seen["payment"]["state"] == "finished"
    assert seen["payment"]["result"]["reference"].startswith("pay-")


@pytest.mark.parametrize("approved", [True, False])
async def test_a_refund_waits_for_a_colleague(client: AsyncClient, staged: Staged, *, approved: bool) -> None:
    page = await place(client)
    await staged.arun(check=True)
    await client.post(f"{page}/refund")
    assert [each.state for each in await staged.arun(refund)] == ["deferred"]
    staged.advance(days=2)
    assert await staged.arun(refund) == []

    await client.post(f"{page}/refund/approval", json={"approved": approved, "by": "grace"})
    assert [each.state for each in await staged.arun(refund, check=True)] == ["finished"]
    assert (await client.get(page)).json()["state"] == ("refunded" if approved else "paid")


async def test_a_refund_without_an_answer_ends_after_three_days(client: AsyncClient, staged: Staged) -> None:
    page = await place(client)
    await staged.arun(check=True)
    await client.post(f"{page}/refund")
    await staged.arun(refund)
    staged.advance(days=3)
    assert [each.state for each in await staged.arun(refund, check=True)] == ["finished"]
    assert (await client.get(page)).json()["state"] == "paid"


async def test_a_payment_waits_for_a_worker(client: AsyncClient) -> None:
    page = await place(client)
    seen = (await client.get(page, params={"wait": 0})).json()
    assert (seen["state"], seen["payment"]["state"]) == ("new", "waiting")


async def test_an_order_that_is_refused_stages_nothing(client: AsyncClient, staged: Staged) -> None:
    assert (await client.post("/orders", json=BASKET | {"cents": 0})).status_code == 422
    staged.none()


async def test_a_declined_card_is_not_tried_again(client: AsyncClient, staged: Staged) -> None:
    page = await place(client, card="visa-0")
    assert [each.state for each in await staged.arun()] == ["dead"]
    seen = (await client.get(page)).json()
    assert (seen["state"], seen["payment"]["state"]) == ("new", "dead")
    assert "has less than 42.00" in seen["payment"]["error"]
    staged.none()


async def test_a_bank_that_is_away_is_asked_again(
    client: AsyncClient, staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(key: str, card: str, cents: int) -> str:
        raise ConnectionError("the bank is away")

    page = await place(client)
    with monkeypatch.context() as patch:
        patch.setattr(bank, "charge", away)
        assert [each.state for each in await staged.arun()] == ["retrying"]
    seen = (await client.get(page, params={"wait": 0})).json()
    assert seen["payment"]["state"] == "retrying"
    assert "the bank is away" in seen["payment"]["error"]

    staged.advance(minutes=1)
    assert [each.state for each in await staged.arun(take_payment)] == ["finished"]


async def test_the_page_of_a_payment_that_runs_needs_no_redis(
    client: AsyncClient, staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    async def look(key: str, card: str, cents: int) -> str:
        seen.update((await client.get(page, params={"wait": 0})).json())
        return key

    page = await place(client)
    monkeypatch.setattr(bank, "charge", look)
    monkeypatch.setenv("DRAIN_REDIS_URL", "redis://127.0.0.1:1")
    await staged.arun(check=True)
    assert seen["payment"] == {"state": "running", "progress": None, "result": None, "error": None}


async def test_the_night_closes_the_orders_that_are_paid(client: AsyncClient, staged: Staged) -> None:
    page = await place(client)
    await staged.arun(check=True)
    unpaid = await place(client)
    staged.advance(days=1)
    staged.assert_one(close_day)
    await staged.arun(close_day, check=True)
    assert (await client.get(page)).json()["state"] == "closed"
    assert (await client.get(unpaid, params={"wait": 0})).json()["state"] == "new"


async def test_there_is_no_page_of_what_nobody_has_ordered(client: AsyncClient) -> None:
    assert (await client.get("/orders/1")).status_code == 404

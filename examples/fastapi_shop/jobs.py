"""Jobs of the shop: `drain work --jobs fastapi_shop.jobs` runs them."""

import json
import logging
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel
from sqlalchemy import update

from drain import Dead, EventTimeoutError, async_transaction, async_wait_for, current_job, job, transaction
from fastapi_shop import bank
from fastapi_shop.tables import Order, Payment

log = logging.getLogger(__name__)


class Charge(BaseModel):
    """Charge on a card, for an order."""

    order_id: int
    cents: int
    card: str


class Paid(BaseModel):
    """Result of a payment."""

    reference: str


@job(queue="payments", result="keep", max_attempts=5, timeout_seconds=30)
async def take_payment(charge: Charge) -> None:
    """Charge the card; payment, result, receipt job and finish are one commit."""
    running = current_job()
    running.progress(0, 1, "waiting for the bank")
    async with async_transaction() as session:
        order = await session.get_one(Order, charge.order_id, with_for_update=True)
        try:
            # Another attempt has the same key, so that the bank charges the card once.
            reference = await bank.charge(running.key, charge.card, charge.cents)
        except bank.DeclinedError as error:
            raise Dead(str(error)) from None
        order.state = "paid"
        session.add(Payment(order_id=order.id, reference=reference))
        await send_receipt.astage(session, order.id)
        running.set_result(Paid(reference=reference))


@job(queue="mail")
def send_receipt(order_id: int) -> None:
    """Send a mail to the customer."""
    with transaction() as session:
        order, payment = session.get_one(Order, order_id), session.get_one(Payment, order_id)
        log.info("to %s: %.2f paid, reference %s", order.email, order.cents / 100, payment.reference)
        payment.receipt_sent = True


@job(queue="payments")
async def refund(order_id: int) -> None:
    """Give the money back, if a colleague approves it within three days."""
    try:
        approval = await async_wait_for(f"refund:{order_id}", timeout=timedelta(days=3))
    except EventTimeoutError:
        return
    if approval["approved"]:
        async with async_transaction() as session:
            order = await session.get_one(Order, order_id, with_for_update=True)
            order.state = "refunded"


@job(cron="0 0 * * *", result="keep")
def close_day() -> None:
    """Close the paid orders of the days before this tick, or until now; the result is their number."""
    context = json.loads(current_job().context or "{}")
    tick = datetime.fromisoformat(context.get("tick", datetime.now(UTC).isoformat()))
    with transaction() as session:
        day = update(Order).where(Order.state == "paid", Order.placed_at < tick)
        closed = session.execute(day.values(state="closed").returning(Order.id)).all()
        current_job().set_result(len(closed))

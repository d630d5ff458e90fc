"""Work of the shop: two tasks that follow an order, and a job that closes the day."""

from __future__ import annotations

from django.core.mail import send_mail
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

import drain
import drain.contrib.django

from .models import Closing, Order

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task

CARD_LIMIT = 1000


@task
def take_payment(order_id: int) -> dict[str, str]:
    """Take the money, and enqueue the receipt in the same transaction; what is returned is the task's result."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        if order.price > CARD_LIMIT:
            raise drain.Dead(f"the card is refused: its limit is {CARD_LIMIT}")
        # A worker that dies before the task's end has paid already: another attempt pays no second time.
        if order.paid_at is None:
            order.paid_at = timezone.now()
            order.save()
            send_receipt.enqueue(order.pk)
    return {"charged": str(order.price)}


@task(queue_name="mail", max_attempts=20)
def send_receipt(order_id: int) -> None:
    """Mail the receipt."""
    order = Order.objects.get(pk=order_id)
    send_mail(f"Receipt of {order}", f"You paid {order.price}.", "shop@example.com", ["you@example.com"])
    Order.objects.filter(pk=order_id).update(receipt_at=timezone.now())


@drain.job(cron="0 3 * * *")
def close_day() -> None:
    """Close the day: the closing, its orders and the end of this job are one commit, so no order is closed twice."""
    with drain.contrib.django.transaction():
        closing = Closing.objects.create()
        Order.objects.filter(paid_at__isnull=False, closing=None).update(closing=closing)
        closing.total = closing.orders.aggregate(total=Sum("price", default=0))["total"]
        closing.save()

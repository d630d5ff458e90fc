"""Tests of the shop: orders are paid, receipted and closed within the transaction of each test."""

from django.core import mail
from django.db import connection
from django.test import TestCase

from drain.contrib.testing import Staged

from .models import Closing, Order
from .tasks import close_day, send_receipt, take_payment


class ShopTests(TestCase):
    """No leader, no worker and no Redis: `staged.run()` does what they would do."""

    def setUp(self) -> None:
        """See what the test stages, on the connection of Django."""
        self.staged = Staged(connection)

    def place(self, price: str) -> Order:
        """Place an order on the page."""
        answer = self.client.post("/", {"article": "tea", "price": price})
        order: Order = Order.objects.latest("pk")
        self.assertRedirects(answer, f"/orders/{order.pk}/")
        return order

    def page(self, order: Order) -> str:
        """Read the page that shows how far the order is."""
        return str(self.client.get(f"/orders/{order.pk}/").content, "utf-8")

    def test_an_order_is_paid_and_receipted(self) -> None:
        """Order, payment and receipt follow each other, and the page shows the result."""
        order = self.place("12.50")
        self.staged.assert_one(take_payment, args=[order.pk])
        self.assertInHTML("<p>Payment: READY</p>", self.page(order))
        assert "refresh" in self.page(order)

        self.staged.run(take_payment, check=True)
        self.staged.assert_one(send_receipt, args=[order.pk], queue="mail")
        self.assertInHTML("<p>Charged: 12.50</p>", self.page(order))
        assert "refresh" not in self.page(order)

        self.staged.run(check=True)
        (receipt,) = mail.outbox
        assert receipt.subject == f"Receipt of order {order.pk}: tea"
        assert "on its way" not in self.page(order)

    def test_a_second_attempt_pays_no_second_time(self) -> None:
        """A worker that died after the payment has left it and one receipt."""
        order = self.place("12.50")
        for _ in range(2):
            take_payment.call(order.pk)
        self.staged.assert_one(send_receipt, args=[order.pk])

    def test_a_card_that_is_refused_pays_nothing(self) -> None:
        """The task fails for good: no retry, no receipt."""
        order = self.place("1000.01")
        assert [ran.state for ran in self.staged.run()] == ["dead"]
        self.assertInHTML("<p>Payment: FAILED</p>", self.page(order))
        self.staged.none(send_receipt)

    def test_a_form_with_an_error_orders_nothing(self) -> None:
        """Neither an order nor a task is there."""
        self.assertContains(self.client.post("/", {"article": "tea", "price": "much"}), "Enter a number")
        self.staged.none(take_payment)

    def test_each_night_closes_the_day(self) -> None:
        """Each order that is paid is in one closing."""
        orders = [self.place("12.50"), self.place("7.50"), self.place("2000")]
        self.staged.run()
        for _ in range(2):
            self.staged.advance(days=1)
            assert [ran.state for ran in self.staged.run(close_day)] == ["finished"]
        first, second = Closing.objects.order_by("pk")
        assert [first.total, second.total] == [20, 0]
        assert set(first.orders.all()) == set(orders[:2])

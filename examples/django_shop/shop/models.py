"""Orders, and closings of days."""

from django.db import models


class Closing(models.Model):
    """End of a day: the orders that were paid since the one before, and what they come to."""

    closed_at = models.DateTimeField(auto_now_add=True)
    total = models.DecimalField(max_digits=12, decimal_places=2, default=0)

    def __str__(self) -> str:
        return f"closing {self.pk}: {self.total}"


class Order(models.Model):
    """An order, and what has become of it. `payment` is the id of the task that takes the money."""

    article = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=10, decimal_places=2)
    payment = models.CharField(max_length=20, editable=False)
    paid_at = models.DateTimeField(null=True, editable=False)
    receipt_at = models.DateTimeField(null=True, editable=False)
    closing = models.ForeignKey(Closing, models.PROTECT, null=True, editable=False, related_name="orders")

    def __str__(self) -> str:
        return f"order {self.pk}: {self.article}"

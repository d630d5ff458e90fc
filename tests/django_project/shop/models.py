"""Orders."""

from django.db import models


class Order(models.Model):
    """An order; its note says what tasks did with it."""

    note = models.TextField(default="")

    def __str__(self) -> str:
        return f"order {self.pk}"

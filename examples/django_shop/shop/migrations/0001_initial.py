"""Orders and closings."""

from typing import Any, ClassVar

from django.db import migrations, models
from django.db.models.deletion import PROTECT


def _id() -> Any:
    return models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    """First version."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Closing",
            fields=[
                ("id", _id()),
                ("closed_at", models.DateTimeField(auto_now_add=True)),
                ("total", models.DecimalField(decimal_places=2, default=0, max_digits=12)),
            ],
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", _id()),
                ("article", models.CharField(max_length=100)),
                ("price", models.DecimalField(decimal_places=2, max_digits=10)),
                ("payment", models.CharField(editable=False, max_length=20)),
                ("paid_at", models.DateTimeField(editable=False, null=True)),
                ("receipt_at", models.DateTimeField(editable=False, null=True)),
                (
                    "closing",
                    models.ForeignKey(
                        editable=False,
                        null=True,
                        on_delete=PROTECT,
                        related_name="orders",
                        to="shop.closing",
                    ),
                ),
            ],
        ),
    ]

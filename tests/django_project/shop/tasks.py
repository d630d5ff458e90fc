"""Tasks of the shop, and receivers of the signals."""

import asyncio
import sys
from typing import Any

from django.dispatch import receiver

import drain.contrib.django
from drain import Dead
from drain.contrib.django.framework import signals
from tests.django_project.shop.models import Order

if "django_tasks" in sys.modules:
    from django_tasks import task
else:
    from django.tasks import task

__all__ = ["fail", "note", "send_mail", "send_receipt", "settle", "task"]


def note(order: int, text: str) -> None:
    Order.objects.create(note=f"{order} {text}")


@task
def send_receipt(order: int, *, copies: int = 1) -> dict[str, Any]:
    note(order, f"receipt x{copies}")
    return {"sent": [order, copies]}


@task(queue_name="mail", priority=7)
async def send_mail(order: int) -> str:
    await Order.objects.acreate(note=f"{order} mail")
    return f"mailed {order}"


@task
def fail(order: int) -> None:
    raise ValueError(f"no paper for {order}")


@task(takes_context=True, max_attempts=3)
def fail_at_first(context: Any, order: int) -> int:
    if context.attempt < 3:
        raise OSError(f"jammed at attempt {context.attempt} of task {context.task_result.id}")
    return int(context.attempt)


@task(max_attempts=1, timeout_seconds=1)
async def hang() -> None:
    await asyncio.sleep(600)


@task(after=lambda order, receipt: receipt)
def follow_up(order: int, receipt: int) -> None:
    note(order, f"after job {receipt}")


@task
def give_up(order: int) -> None:
    raise Dead("it was shredded")


@task(give_up_on=(ValueError,))
def refuse(order: int) -> None:
    raise ValueError(f"no such order: {order}")


@task
def return_an_object() -> object:
    return object()


@task
def settle(order: int) -> dict[str, int]:
    with drain.contrib.django.transaction():
        note(order, "settled")
    return {"settled": order}


@receiver([signals.task_started, signals.task_finished])
def listen(sender: type, task_result: Any, signal: Any, **_more: Any) -> None:
    word = "started" if signal is signals.task_started else f"finished {task_result.status}"
    name = task_result.task.name
    note(0, f"{name} {word} by {sender.__name__}, attempt {task_result.attempts}")
    raise RuntimeError("a receiver fails")

"""Pages of the shop."""

from django.db import transaction
from django.forms import modelform_factory
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from .models import Order
from .tasks import take_payment

OrderForm = modelform_factory(Order, fields=["article", "price"])


def place(request: HttpRequest) -> HttpResponse:
    """Place an order: the order and the task that takes the payment commit together, or neither does."""
    form = OrderForm(request.POST or None)
    if not form.is_valid():
        return render(request, "shop/place.html", {"form": form})
    with transaction.atomic():
        order = form.save()
        order.payment = take_payment.enqueue(order.pk).id
        order.save()
    return redirect("status", order.pk)


def status(request: HttpRequest, order_id: int) -> HttpResponse:
    """Show how far an order is; the page asks again each second, until its task is finished."""
    order = get_object_or_404(Order, pk=order_id)
    result = take_payment.get_result(order.payment)
    return render(request, "shop/status.html", {"order": order, "result": result})

"""The views that place orders."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from faststream_outbox.django import aatomic, apublish, publish
from tests.django.shop.models import Order


def place_order(request: HttpRequest) -> JsonResponse:
    """Place an order and publish it, in one transaction; an order for nothing fails."""
    with transaction.atomic():
        order = Order.objects.create(product=request.GET["product"])
        publish({"order_id": order.pk}, queue="orders", key=order.product or "nothing")
        if not order.product:
            raise ValueError("nobody orders nothing")
    return JsonResponse({"id": order.pk})


async def place_order_async(request: HttpRequest) -> JsonResponse:
    """Do the same in async code."""
    async with aatomic():
        order = await Order.objects.acreate(product=request.GET["product"])
        await apublish({"order_id": order.pk}, queue="orders")
        if not order.product:
            raise ValueError("nobody orders nothing")
    return JsonResponse({"id": order.pk})

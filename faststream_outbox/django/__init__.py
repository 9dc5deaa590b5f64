"""The outbox in a Django project: messages inside `transaction.atomic()`, migrations, admin pages, `manage.py outbox`.

Example:
    INSTALLED_APPS = [..., "faststream_outbox.django"]

    from django.db import transaction
    from faststream_outbox.django import publish

    with transaction.atomic():
        order = Order.objects.create(product="tea")
        publish({"order_id": order.id}, queue="orders")

"""

from faststream_outbox._installation import needs_extra

try:
    import django as _django  # noqa: F401 - imported only to name what is missing
except ImportError as error:
    raise ImportError(needs_extra("faststream_outbox.django", "django")) from error

from faststream_outbox.django.database import database_url, make_broker, make_operations
from faststream_outbox.django.publishing import aatomic, apublish, apublish_batch, publish, publish_batch

__all__ = [
    "aatomic",
    "apublish",
    "apublish_batch",
    "database_url",
    "make_broker",
    "make_operations",
    "publish",
    "publish_batch",
]

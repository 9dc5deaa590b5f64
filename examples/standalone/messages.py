"""The messages between the shop and the service, and their queues."""

from typing import Final

from pydantic import BaseModel

ORDERS: Final = "orders"
SHIPMENTS: Final = "shipments"


class OrderPlaced(BaseModel):
    """A customer wants something."""

    order_id: int
    product: str


class OrderPacked(BaseModel):
    """A parcel is ready."""

    order_id: int

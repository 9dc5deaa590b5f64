"""The messages between the shop and the app, and their queues."""

from typing import Final

from pydantic import BaseModel

from examples.demo.fates import Fate

ORDERS: Final = "orders"
PARCELS: Final = "parcels"
ACCOUNTS: Final = "accounts"
REMINDERS: Final = "reminders"
# Relayed to Kafka, to the topic of the same name.
STATEMENTS: Final = "statements"
QUEUES: Final = (ORDERS, PARCELS, ACCOUNTS, REMINDERS, STATEMENTS)


class OrderPlaced(BaseModel):
    """An order was committed."""

    order_number: int
    fate: Fate


class OrderConfirmed(BaseModel):
    """The customer knows; the parcel can be packed."""

    order_number: int


class Charge(BaseModel):
    """An order goes on the account of a regular customer, whose charges are numbered."""

    order_number: int
    fate: Fate
    customer: int
    entry: int
    cents: int


class PaymentDue(BaseModel):
    """It is time to remind a customer who has not paid yet."""

    order_number: int

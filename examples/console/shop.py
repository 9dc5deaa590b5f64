"""The shop: its tables, its broker, and handlers that fail as those of real shops do."""

import asyncio
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import (
    ConstantRetry,
    ExponentialRetry,
    OutboxBroker,
    make_dlq_table,
    make_operations_tables,
    make_outbox_table,
)

ORDERS, PAYMENTS, EMAILS, REMINDERS, SHIPMENTS, LEDGER = (
    "orders",
    "payments",
    "emails",
    "reminders",
    "shipments",
    "ledger",
)

metadata = MetaData()
outbox_table = make_outbox_table(metadata)
dlq_table = make_dlq_table(metadata)
operations_tables = make_operations_tables(metadata)


class PaymentRefusedError(Exception):
    """The bank refuses the payment: trying again does not help."""


class AddressUnknownError(Exception):
    """The parcel service does not know the address."""


def make_broker(engine: AsyncEngine) -> OutboxBroker:
    """Return the broker of the shop, with its subscribers."""
    broker = OutboxBroker(
        engine,
        outbox_table=outbox_table,
        dlq_table=dlq_table,
        control_table=operations_tables.control,
        audit_table=operations_tables.audit,
        nodes_table=operations_tables.nodes,
        logger=None,
    )

    @broker.subscriber(ORDERS, max_workers=4)
    async def take_order(order: dict[str, Any]) -> None:
        # Large orders take longer.
        await asyncio.sleep(order["cents"] / 1_000_000)

    @broker.subscriber(
        PAYMENTS,
        max_workers=4,
        retry_strategy=ExponentialRetry(initial_delay_seconds=1, max_attempts=4),
        on_dead="park",
    )
    async def charge(payment: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        if payment["card"] == "expired":
            raise PaymentRefusedError(f"card of {payment['customer']} expired 03/26")

    @broker.subscriber(EMAILS, max_workers=2, retry_strategy=ConstantRetry(delay_seconds=20, max_attempts=3))
    async def send_email(email: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        if email["to"].endswith("@example.invalid"):
            raise TimeoutError("smtp.example.com did not answer within 10 s")

    @broker.subscriber(REMINDERS)
    async def remind(reminder: dict[str, Any]) -> None:
        if reminder["step"] == "lawyer":
            raise ValueError("write the letter by hand")

    @broker.subscriber(SHIPMENTS, max_workers=2, retry_strategy=ConstantRetry(delay_seconds=0.2, max_attempts=2))
    async def ship(parcel: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        if parcel["city"] == "Atlantis":
            raise AddressUnknownError(f"no carrier delivers to {parcel['city']} (order {parcel['order']})")

    return broker

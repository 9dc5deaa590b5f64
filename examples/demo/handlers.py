"""The handlers: confirm an order, pack its parcel, remind of its payment."""

import asyncio
from typing import Annotated

from faststream import Context
from faststream.exceptions import RejectMessage
from sqlalchemy import insert
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from examples.demo.fates import Fate
from examples.demo.messages import ORDERS, PARCELS, REMINDERS, OrderConfirmed, OrderPlaced, PaymentDue
from examples.demo.tables import Confirmation, Parcel, Reminder
from faststream_outbox import ConstantRetry, OutboxRouter
from faststream_outbox.annotations import OutboxMessage

MAX_ATTEMPTS = 3
WORKERS = 8
# How long the messages of an app that was killed wait for the next one; the default is a minute.
LEASE_SECONDS = 3.0
# What a mail server takes for one customer.
MAIL_SECONDS = 0.002

Sessions = Annotated[async_sessionmaker[AsyncSession], Context("sessions")]

router = OutboxRouter()


class OutOfReachError(Exception):
    """What a handler meets when another service does not answer: worth another try."""


class UnknownArticleError(Exception):
    """What a handler meets in a message that it can never handle, and does not know it."""


@router.publisher(PARCELS)
@router.subscriber(
    ORDERS,
    max_workers=WORKERS,
    lease_ttl_seconds=LEASE_SECONDS,
    retry_strategy=ConstantRetry(delay_seconds=0.3, max_attempts=MAX_ATTEMPTS),
)
async def confirm_order(order: OrderPlaced, message: OutboxMessage, sessions: Sessions) -> OrderConfirmed:
    """Tell the customer. A message that comes twice changes nothing the second time."""
    meet_fate(order, attempt=message.raw_message.attempts_count + 1)
    await asyncio.sleep(MAIL_SECONDS)
    async with sessions.begin() as session:
        confirmation = insert_or_ignore(Confirmation).on_conflict_do_nothing()
        await session.execute(confirmation.values(message_id=int(message.message_id), order_number=order.order_number))
    # Published by the statement that deletes the order's message: both happen, or neither.
    return OrderConfirmed(order_number=order.order_number)


@router.subscriber(
    PARCELS,
    max_workers=WORKERS,
    lease_ttl_seconds=LEASE_SECONDS,
    # Handled messages wait for company: fewer statements delete them, and a crash repeats more of them.
    terminal_flush_interval_ms=200,
)
async def pack_parcel(order: OrderConfirmed, sessions: Sessions) -> None:
    """Pack a parcel, without asking whether that was done before: a message that comes twice is packed twice."""
    async with sessions.begin() as session:
        await session.execute(insert(Parcel).values(order_number=order.order_number))


@router.subscriber(REMINDERS, lease_ttl_seconds=LEASE_SECONDS)
async def remind(order: PaymentDue, message: OutboxMessage, sessions: Sessions) -> None:
    """Remind a customer, once."""
    async with sessions.begin() as session:
        reminder = insert_or_ignore(Reminder).on_conflict_do_nothing()
        await session.execute(reminder.values(message_id=int(message.message_id), order_number=order.order_number))


def meet_fate(order: OrderPlaced, attempt: int) -> None:
    """Fail the way this order is meant to."""
    match order.fate:
        case Fate.FORGED:
            raise RejectMessage
        case Fate.POISON:
            raise UnknownArticleError(f"order {order.order_number} names an article that nobody sells")
        case Fate.FLAKY if attempt <= 1:
            raise OutOfReachError(f"no answer while confirming order {order.order_number}")
        case Fate.STUBBORN if attempt < MAX_ATTEMPTS:
            raise OutOfReachError(f"still no answer while confirming order {order.order_number}")

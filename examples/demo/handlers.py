"""The handlers: confirm an order, pack its parcel, book its charge, remind of its payment."""

import asyncio
from typing import Annotated

from faststream import Context
from faststream.exceptions import RejectMessage
from sqlalchemy import insert
from sqlalchemy.dialects.postgresql import insert as insert_or
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from examples.demo.fates import Fate
from examples.demo.messages import (
    ACCOUNTS,
    ORDERS,
    PARCELS,
    REMINDERS,
    Charge,
    OrderConfirmed,
    OrderPlaced,
    PaymentDue,
)
from examples.demo.tables import Account, Confirmation, Parcel, Reminder
from faststream_outbox import ConstantRetry, OutboxRouter
from faststream_outbox.annotations import OutboxMessage

MAX_ATTEMPTS = 3
# Messages of one queue that a process handles at the same time.
WORKERS = 4
# How long the messages of a killed worker wait for another one; the default is a minute.
LEASE_SECONDS = 3.0
# What a mail server takes for one customer.
MAIL_SECONDS = 0.002
# What the bookkeeping takes for one charge.
BOOKING_SECONDS = 0.02

Sessions = Annotated[async_sessionmaker[AsyncSession], Context("sessions")]

router = OutboxRouter()


class OutOfReachError(Exception):
    """Another service does not answer: a retry may help."""


class UnknownArticleError(Exception):
    """The message names an unknown article. No retry can succeed, but the handler does not know that."""


@router.publisher(PARCELS)
@router.subscriber(
    ORDERS,
    max_workers=WORKERS,
    lease_ttl_seconds=LEASE_SECONDS,
    retry_strategy=ConstantRetry(delay_seconds=0.3, max_attempts=MAX_ATTEMPTS),
)
async def confirm_order(order: OrderPlaced, message: OutboxMessage, sessions: Sessions) -> OrderConfirmed:
    """Notify the customer. A second delivery of the message changes nothing."""
    meet_fate(order, attempt=message.raw_message.attempts_count + 1)
    await asyncio.sleep(MAIL_SECONDS)
    async with sessions.begin() as session:
        confirmation = insert_or(Confirmation).on_conflict_do_nothing()
        await session.execute(confirmation.values(message_id=int(message.message_id), order_number=order.order_number))
    # The statement that deletes the order's message also publishes this: both happen, or neither.
    return OrderConfirmed(order_number=order.order_number)


@router.subscriber(
    PARCELS,
    max_workers=WORKERS,
    lease_ttl_seconds=LEASE_SECONDS,
    # Settle handled messages in larger batches: fewer statements, but a crash repeats more messages.
    terminal_flush_interval_ms=200,
)
async def pack_parcel(order: OrderConfirmed, sessions: Sessions) -> None:
    """Pack a parcel. The handler does not check for repeats: a second delivery packs a second parcel."""
    async with sessions.begin() as session:
        await session.execute(insert(Parcel).values(order_number=order.order_number))


@router.subscriber(
    ACCOUNTS,
    max_workers=WORKERS,
    lease_ttl_seconds=LEASE_SECONDS,
    retry_strategy=ConstantRetry(delay_seconds=0.3, max_attempts=MAX_ATTEMPTS),
)
async def book_charge(charge: Charge, message: OutboxMessage, sessions: Sessions) -> None:
    """Book a charge. Charges of one customer come in order, and a repeated one is detected by its number."""
    if charge.fate is Fate.FLAKY and message.raw_message.attempts_count == 0:
        raise OutOfReachError(f"no answer while booking order {charge.order_number}")  # later charges wait for this one
    await asyncio.sleep(BOOKING_SECONDS)
    async with sessions.begin() as session:
        account = insert_or(Account).values(customer=charge.customer, booked=charge.entry, cents=charge.cents)
        await session.execute(
            account.on_conflict_do_update(
                index_elements=[Account.customer],
                set_={"booked": charge.entry, "cents": Account.cents + charge.cents},
                where=Account.booked < charge.entry,
            )
        )


@router.subscriber(REMINDERS, lease_ttl_seconds=LEASE_SECONDS)
async def remind(order: PaymentDue, message: OutboxMessage, sessions: Sessions) -> None:
    """Remind a customer, once."""
    async with sessions.begin() as session:
        reminder = insert_or(Reminder).on_conflict_do_nothing()
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

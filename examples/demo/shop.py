"""The shop: writes each order and its messages in one transaction, and some of these roll back."""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import timedelta

from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from examples.demo.fates import Fate
from examples.demo.messages import ORDERS, REMINDERS, OrderPlaced, PaymentDue
from examples.demo.tables import Order
from faststream_outbox import OutboxBroker

# Customers who are served at the same time; their commits share the disk's work.
TILLS = 8
# How long a customer takes to pay, and when one who does not is reminded: days in life, seconds here.
PAYS_AFTER = 0.5
REMINDED_AFTER = timedelta(seconds=4)


class PaymentDeclinedError(Exception):
    """The customer cannot pay."""


class Shop:
    """Places orders, and remembers what it told each customer."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession], broker: OutboxBroker) -> None:
        self._sessions = sessions
        self._broker = broker
        self.accepted: set[int] = set()
        self.cancelled: set[int] = set()

    @property
    def placed(self) -> int:
        """How many orders the shop is done with, one way or the other."""
        return len(self.accepted) + len(self.cancelled)

    async def serve(self, fates: Iterable[Fate]) -> None:
        """Place one order for each fate, at several tills."""
        customers = iter(enumerate(fates, start=1))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TILLS):
                tasks.create_task(self._serve_at_till(customers, tasks))

    async def _serve_at_till(self, customers: Iterator[tuple[int, Fate]], tasks: asyncio.TaskGroup) -> None:
        for number, fate in customers:
            try:
                await self._place_order(number, fate)
            except (PaymentDeclinedError, IntegrityError):
                self.cancelled.add(number)
                continue
            self.accepted.add(number)
            if fate is Fate.PAID:
                tasks.create_task(self._pay_later(number))

    async def _place_order(self, number: int, fate: Fate) -> None:
        cents = 0 if fate is Fate.REFUSED else 100 * number
        async with self._sessions.begin() as session:
            session.add(Order(number=number, cents=cents, fate=fate))
            placed = OrderPlaced(order_number=number, fate=fate)
            await self._broker.publish(placed, queue=ORDERS, session=session)
            if fate in (Fate.UNPAID, Fate.PAID):
                await self._broker.publish(
                    PaymentDue(order_number=number),
                    queue=REMINDERS,
                    session=session,
                    activate_in=REMINDED_AFTER,
                    timer_id=timer_of(number),
                )
            await session.flush()  # the order is written here, or refused, with its messages already in the outbox
            if fate is Fate.DECLINED:
                raise PaymentDeclinedError

    async def _pay_later(self, number: int) -> None:
        await asyncio.sleep(PAYS_AFTER)
        async with self._sessions() as session:
            await session.execute(update(Order).where(Order.number == number).values(paid=True))
            if await self._broker.cancel_timer(queue=REMINDERS, timer_id=timer_of(number), session=session):
                await session.commit()
            # Otherwise the reminder is on its way, and this customer counts as one who did not pay in time.


def timer_of(order_number: int) -> str:
    """Name the reminder of an order, so that it can be found again."""
    return f"order-{order_number}"

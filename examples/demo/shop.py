"""The shop: writes each order and its messages in one transaction, and some of these roll back."""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import timedelta

from sqlalchemy import update
from sqlalchemy.dialects.postgresql import insert as insert_or
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from examples.demo.fates import Fate
from examples.demo.messages import ACCOUNTS, ORDERS, REMINDERS, STATEMENTS, Charge, OrderPlaced, PaymentDue
from examples.demo.tables import Customer, Order
from faststream_outbox import OutboxBroker

# Customers who are served at the same time; their commits share disk writes.
TILLS = 8
# Every third order is one of a dozen regular customers, who have an account.
REGULAR_CUSTOMERS = 12
_REGULAR_EVERY = 3
# How long a customer takes to pay, and when one who does not is reminded: days in life, seconds here.
PAYS_AFTER = 0.5
REMINDED_AFTER = timedelta(seconds=4)


class PaymentDeclinedError(Exception):
    """The customer cannot pay."""


class Shop:
    """Places orders, and remembers what it answered each customer."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession], broker: OutboxBroker) -> None:
        self._sessions = sessions
        self._broker = broker
        self.accepted: set[int] = set()
        self.cancelled: set[int] = set()

    @property
    def placed(self) -> int:
        """How many orders the shop has placed or cancelled."""
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
            charge = await self._charge(session, number, fate, cents)
            session.add(
                Order(
                    number=number,
                    cents=cents,
                    fate=fate,
                    customer=charge and charge.customer,
                    entry=charge and charge.entry,
                )
            )
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

    async def _charge(self, session: AsyncSession, number: int, fate: Fate, cents: int) -> Charge | None:
        customer = regular_customer_of(number)
        if customer is None:
            return None
        count = insert_or(Customer).values(number=customer, charges=1)
        count = count.on_conflict_do_update(index_elements=[Customer.number], set_={"charges": Customer.charges + 1})
        entry = (await session.scalars(count.returning(Customer.charges))).one()
        charge = Charge(order_number=number, fate=fate, customer=customer, entry=entry, cents=cents)
        # With a key: the charges of one customer are handled in the order of these commits, one at a time.
        await self._broker.publish(charge, queue=ACCOUNTS, key=f"customer-{customer}", session=session)
        # And to Kafka, in the same order.
        await self._broker.publish(charge, queue=STATEMENTS, key=f"customer-{customer}", session=session)
        return charge

    async def _pay_later(self, number: int) -> None:
        await asyncio.sleep(PAYS_AFTER)
        async with self._sessions() as session:
            await session.execute(update(Order).where(Order.number == number).values(paid=True))
            if await self._broker.cancel_timer(queue=REMINDERS, timer_id=timer_of(number), session=session):
                await session.commit()
            # Otherwise the reminder is on its way, and this customer counts as one who did not pay in time.


def regular_customer_of(order_number: int) -> int | None:
    """Return the account to which an order is charged, or None."""
    rank, other = divmod(order_number, _REGULAR_EVERY)
    return None if other else rank % REGULAR_CUSTOMERS + 1


def timer_of(order_number: int) -> str:
    """Return the name of the timer that reminds of an order."""
    return f"order-{order_number}"

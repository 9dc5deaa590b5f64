"""The little application: a shop that writes each order and its message in one transaction."""

import asyncio
import json
from collections.abc import Iterable, Iterator

from sqlalchemy import CheckConstraint
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.demo.fates import Fate
from faststream_outbox import make_dlq_table, make_outbox_table
from faststream_outbox.storage import NewRow, Store

QUEUE = "orders"
# Customers who are served at the same time; their commits share the disk's work.
TILLS = 8


class Base(DeclarativeBase):
    """The application's tables; those of the outbox are two more of them."""


class Order(Base):
    """An order, once it is committed."""

    __tablename__ = "orders"
    __table_args__ = (CheckConstraint("cents > 0", name="orders_cost_something"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cents: Mapped[int]


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class PaymentDeclinedError(Exception):
    """The customer cannot pay."""


class Shop:
    """Places orders, and remembers what it told each customer."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession], store: Store) -> None:
        self._sessions = sessions
        self._store = store
        self.confirmed: set[int] = set()
        self.cancelled: set[int] = set()

    async def serve(self, fates: Iterable[Fate]) -> None:
        """Place one order for each fate, at several tills."""
        customers = iter(enumerate(fates, start=1))
        async with asyncio.TaskGroup() as tills:
            for _ in range(TILLS):
                tills.create_task(self._serve_at_till(customers))

    async def _serve_at_till(self, customers: Iterator[tuple[int, Fate]]) -> None:
        for number, fate in customers:
            try:
                await self._place_order(number, fate)
            except (PaymentDeclinedError, IntegrityError):
                self.cancelled.add(number)
            else:
                self.confirmed.add(number)

    async def _place_order(self, number: int, fate: Fate) -> None:
        cents = 0 if fate is Fate.REFUSED else 100 * number
        async with self._sessions.begin() as session:
            session.add(Order(number=number, cents=cents))
            await self._store.insert(session, NewRow(QUEUE, message_of(number)))
            await session.flush()  # the order is written here, or refused, with its message already in the outbox
            if fate is Fate.DECLINED:
                raise PaymentDeclinedError


def message_of(order: int) -> bytes:
    """Write the message that tells of an order."""
    return json.dumps({"order": order}).encode()


def order_in(message: bytes) -> int:
    """Read the order's number out of its message."""
    number: int = json.loads(message)["order"]
    return number

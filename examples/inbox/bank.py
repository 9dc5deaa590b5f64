"""A bank: each payment is booked once, although it is announced several times."""

from collections.abc import Callable

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import (
    ConstantRetry,
    Inbox,
    OutboxBroker,
    make_dlq_table,
    make_inbox_table,
    make_outbox_table,
)
from faststream_outbox.annotations import InboxSession
from faststream_outbox.envelope import OUTBOX_ID

PAYMENTS = "payments"


class Base(DeclarativeBase):
    """The metadata of all tables."""


class Booking(Base):
    """Money that came in."""

    __tablename__ = "bookings"

    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)
inbox_table = make_inbox_table(Base.metadata)


class Bank:
    """Books payments. Any broker that delivers at least once could stand in place of this one."""

    def __init__(self, engine: AsyncEngine, say: Callable[[str], None]) -> None:
        self.broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, logger=None)
        self.sessions = async_sessionmaker(engine)
        self._say = say
        self._tries = 0
        inbox = Inbox(engine, table=inbox_table, consumer="bookings")
        at_once = ConstantRetry(delay_seconds=0.0, max_attempts=10)
        self.broker.subscriber(PAYMENTS, middlewares=[inbox], retry_strategy=at_once)(self.book)

    async def announce(self, payment_id: str, cents: int) -> None:
        """Announce a payment. A sender announces again if it does not know whether it succeeded."""
        async with self.sessions() as session, session.begin():
            await self.broker.publish(cents, queue=PAYMENTS, session=session, headers={OUTBOX_ID: payment_id})

    async def book(self, cents: int, session: InboxSession) -> None:
        """Book a payment. The first attempt fails after its write and is rolled back."""
        session.add(Booking(cents=cents))
        await session.flush()
        self._tries += 1
        if self._tries == 1:
            self._say(f"{cents} cents: failed, and undone")
            raise ConnectionError
        self._say(f"{cents} cents: booked")

    async def total(self) -> int:
        """Add up what was booked."""
        async with self.sessions() as session:
            return await session.scalar(select(func.sum(Booking.cents))) or 0

    async def is_done(self) -> bool:
        """Return whether every announcement was handled."""
        async with self.sessions() as session:
            return not await self.broker.fetch_unprocessed(session=session)

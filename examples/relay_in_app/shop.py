"""A shop: it announces an order over NATS JetStream only if the order is committed."""

from typing import Any

from faststream.nats import JStream, NatsBroker
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import ConstantRetry, OutboxBroker, make_dlq_table, make_outbox_table

SUBJECT, STREAM = "orders.placed", JStream("orders")


class Base(DeclarativeBase):
    """The metadata of all tables."""


class Order(Base):
    """What was bought."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class Shop:
    """Writes orders; the outbox announces them."""

    def __init__(self, engine: AsyncEngine, nats: NatsBroker) -> None:
        self.broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, source="shop", logger=None)
        self.sessions = async_sessionmaker(engine)
        # No limit of attempts: a long outage loses no message.
        again = ConstantRetry(delay_seconds=0.2, max_attempts=None)
        handler = self.broker.subscriber("orders", retry_strategy=again)(self.announce)
        nats.publisher(SUBJECT, stream=STREAM)(handler)

    async def place(self, what: str) -> None:
        """Write an order and its message in one transaction."""
        async with self.sessions() as session, session.begin():
            order = Order(what=what)
            session.add(order)
            await session.flush()
            await self.broker.publish({"id": order.id, "what": what}, queue="orders", session=session)

    async def announce(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return what goes to NATS; the row is deleted only after NATS has confirmed it."""
        return order

    async def attempts(self) -> list[int]:
        """Return how often each row that is left has failed."""
        async with self.sessions() as session:
            return [row.attempts_count for row in await self.broker.fetch_unprocessed(session=session)]

"""A bank: one transaction writes a movement and its message, and a relay sends the message to Kafka."""

from faststream.kafka import KafkaBroker
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import OutboxBroker, Relay, make_dlq_table, make_outbox_table

TOPIC = "movements"


class Base(DeclarativeBase):
    """The metadata of all tables."""


class Account(Base):
    """How much there is, and how often that has changed."""

    __tablename__ = "accounts"

    owner: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)
    movements: Mapped[int] = mapped_column(default=0)


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class Bank:
    """Moves money, and publishes each movement."""

    def __init__(self, engine: AsyncEngine, kafka: str) -> None:
        self._sessions = async_sessionmaker(engine)
        self._broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, source="bank", logger=None)
        self.relay = Relay(self._broker, to=KafkaBroker(kafka, logger=None), routes={"movements": TOPIC})

    async def open(self, *owners: str) -> None:
        """Open accounts."""
        async with self._sessions.begin() as session:
            session.add_all(Account(owner=owner) for owner in owners)

    async def move(self, owner: str, cents: int) -> None:
        """Book a movement and announce it: both, or neither."""
        async with self._sessions.begin() as session:
            account = await session.get_one(Account, owner, with_for_update=True)
            account.cents += cents
            account.movements += 1
            body = {"owner": owner, "cents": cents, "number": account.movements}
            # With a key: a reader of the topic sees the movements of an account in the order of these commits.
            await self._broker.publish(body, queue="movements", key=owner, session=session)

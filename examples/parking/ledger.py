"""A ledger: the entries of an account are booked in order, and an entry that fails parks its account."""

from collections.abc import Callable

from sqlalchemy import CheckConstraint, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import ConstantRetry, KeyState, OutboxBroker, OutboxSession, make_dlq_table, make_outbox_table
from faststream_outbox.annotations import OutboxMessage

ENTRIES = "entries"


class Base(DeclarativeBase):
    """The metadata of all tables."""


class Account(Base):
    """One account; there is no credit."""

    __tablename__ = "accounts"
    __table_args__ = (CheckConstraint("balance >= 0", name="no_credit"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class Ledger:
    """The books, and the clerk's tools."""

    def __init__(self, engine: AsyncEngine, say: Callable[[str], None]) -> None:
        self.broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, logger=None)
        self.sessions = async_sessionmaker(engine)
        self._say = say
        # An entry that fails twice needs the clerk: its account waits, the others do not.
        twice = ConstantRetry(delay_seconds=0.1, max_attempts=2)
        self.broker.subscriber(ENTRIES, retry_strategy=twice, on_dead="park")(self.book)

    async def post(self, name: str, *amounts: int) -> None:
        """Send entries of an account."""
        async with self.sessions() as session, session.begin():
            keys = [name] * len(amounts)
            await self.broker.publish_batch(*amounts, queue=ENTRIES, session=session, keys=keys)

    async def book(self, amount: int, message: OutboxMessage, session: OutboxSession) -> None:
        """Book an entry, in the transaction that deletes its message."""
        name = message.raw_message.entity_key
        try:
            changed = update(Account).where(Account.name == name).values(balance=Account.balance + amount)
            await session.execute(changed)
        except IntegrityError as error:
            raise ValueError(f"{name} has not {-amount}") from error
        self._say(f"{name}: {amount:+}")

    async def parked(self) -> list[KeyState]:
        """Return the accounts that wait for the clerk."""
        async with self.sessions() as session:
            return await self.broker.fetch_keys(session=session, queue=ENTRIES, state="parked")

    async def lend(self, name: str, amount: int) -> None:
        """Pay in by hand and retry the entry that failed, in one transaction."""
        async with self.sessions() as session, session.begin():
            await session.execute(update(Account).where(Account.name == name).values(balance=Account.balance + amount))
            await self.broker.retry_key(queue=ENTRIES, key=name, session=session)

    async def refuse(self, name: str, reason: str) -> None:
        """Skip an entry; it goes to the dead-letter table."""
        async with self.sessions() as session, session.begin():
            await self.broker.skip_key(queue=ENTRIES, key=name, reason=reason, session=session)

    async def balances(self) -> dict[str, int]:
        """Return the balance of every account."""
        async with self.sessions() as session:
            accounts = (await session.execute(select(Account).order_by(Account.name))).scalars()
            return {account.name: account.balance for account in accounts}

    async def refused(self) -> list[str]:
        """Return why entries were dead-lettered."""
        async with self.sessions() as session:
            reasons = (await session.execute(select(dlq_table.c.last_exception))).scalars()
            return [reason.partition("\n")[0] for reason in reasons]

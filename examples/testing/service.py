"""Registers users, welcomes them by mail, and reminds them after three days."""

import os
from datetime import timedelta
from typing import Annotated

from faststream import Depends, FastStream
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import ConstantRetry, OutboxBroker, OutboxResponse, make_dlq_table, make_outbox_table


class Base(DeclarativeBase):
    """The metadata of all tables."""


class User(Base):
    """A user who has registered."""

    __tablename__ = "users"

    email: Mapped[str] = mapped_column(primary_key=True)


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)

# The engine connects at its first use: a test without a database can import this module.
engine = create_async_engine(os.environ.get("DATABASE_URL", "postgresql+asyncpg://localhost/app"))
broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table)
app = FastStream(broker)


class Mailer:
    """Sends mail; this example only prints it."""

    async def send(self, to: str, text: str) -> None:
        """Send one mail."""
        print(f"to {to}: {text}")


def get_mailer() -> Mailer:
    """Make a mailer; tests override this."""
    return Mailer()


async def register(session: AsyncSession, email: str) -> None:
    """Insert a user, and the message that asks for the welcome mail."""
    session.add(User(email=email))
    await broker.publish(email, queue="welcome", session=session)


@broker.subscriber("welcome", retry_strategy=ConstantRetry(delay_seconds=0.05, max_attempts=3))
async def welcome(email: str, mailer: Annotated[Mailer, Depends(get_mailer)]) -> OutboxResponse:
    """Welcome a user. The statement that deletes this message inserts the reminder."""
    await mailer.send(email, "welcome")
    return OutboxResponse(email, queue="reminders", activate_in=timedelta(days=3), timer_id=email)

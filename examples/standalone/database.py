"""What the shop and the service share: the tables, and where they are."""

import os

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import make_dlq_table, make_outbox_table


class Base(DeclarativeBase):
    """The metadata of all tables; Alembic would migrate it."""


class Order(Base):
    """One order of a customer."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)

engine = create_async_engine(os.environ.get("DATABASE_URL", "postgresql+asyncpg://localhost/app"))
sessions = async_sessionmaker(engine)


async def create_tables() -> None:
    """Create what is missing."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

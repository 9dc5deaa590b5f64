"""SQLModel: its session is one of SQLAlchemy, and its metadata has the tables of the outbox too."""

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import Field, SQLModel
from sqlmodel.ext.asyncio.session import AsyncSession

from faststream_outbox import OutboxBroker, make_outbox_table


class Purchase(SQLModel, table=True):
    """One order of a customer, as a model of SQLModel."""

    id: int | None = Field(default=None, primary_key=True)
    product: str


outbox_table = make_outbox_table(SQLModel.metadata)


async def place_order(engine: AsyncEngine, product: str) -> int:
    """Insert an order and its message: both, or neither."""
    broker = OutboxBroker(outbox_table=outbox_table)
    async with AsyncSession(engine) as session, session.begin():
        purchase = Purchase(product=product)
        session.add(purchase)
        await session.flush()  # assigns the id
        assert purchase.id is not None
        await broker.publish(purchase.id, queue="orders", session=session)
        return purchase.id

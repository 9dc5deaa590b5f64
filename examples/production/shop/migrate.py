"""`python -m shop.migrate`: create the tables and check them. In your service this is `alembic upgrade head`."""

import asyncio

from faststream_outbox import OutboxBroker

from .settings import make_engine
from .tables import Base, dlq_table, outbox_table


async def main() -> None:
    """Create what is missing, and raise if the tables are not as the broker needs them."""
    engine = make_engine(pool_size=2)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table).validate_schema()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())

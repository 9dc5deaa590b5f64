"""The command: run a day at the bank on its own Postgres, and check the books at the end."""

import asyncio
import sys

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from examples.bank.bank import accept, router
from examples.bank.check import find_violations
from examples.bank.tables import Account, Base, LedgerLine, Notification, dlq_table, outbox_table
from faststream_outbox import OutboxBroker
from faststream_outbox.embedded import EmbeddedPostgres

ACCOUNTS = (1, 2, 3)
UNKNOWN = 99


async def main() -> bool:
    """Run the day. Return False if the check found a violation."""
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url("asyncpg"), pool_size=10)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            await _day(engine)
            return await _close_the_books(engine)
        finally:
            await engine.dispose()


async def _day(engine: AsyncEngine) -> None:
    sessions = async_sessionmaker(engine)
    broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, routers=[router], logger=None)
    async with sessions.begin() as session:
        session.add_all([Account(id=number, opening_cents=1000, cents=1000) for number in ACCOUNTS])
        await accept(broker, session, source=1, target=2, cents=100)
        await accept(broker, session, source=2, target=3, cents=30)
        await accept(broker, session, source=3, target=1, cents=55, stumbles=1)
        await accept(broker, session, source=1, target=UNKNOWN, cents=500)
    await broker.start()
    try:
        async with asyncio.timeout(30):
            while await _waiting(sessions, broker):
                await asyncio.sleep(0.05)
    finally:
        await broker.stop()


async def _waiting(sessions: async_sessionmaker[AsyncSession], broker: OutboxBroker) -> bool:
    async with sessions() as session:
        return bool(await broker.fetch_unprocessed(session=session))


async def _close_the_books(engine: AsyncEngine) -> bool:
    async with engine.connect() as connection:
        accounts = (await connection.execute(select(Account.id, Account.cents).order_by(Account.id))).all()
        lines = await connection.scalar(select(func.count()).select_from(LedgerLine))
        notifications = await connection.scalar(select(func.count()).select_from(Notification))
        dead = await connection.scalar(select(func.count()).select_from(dlq_table))
        violations = await find_violations(connection)
    for number, cents in accounts:
        print(f"account {number}: {cents} cents")
    print(f"{sum(cents for _, cents in accounts)} cents in all")
    print(f"{lines} ledger lines, {notifications} notifications, {dead} dead letter")
    for name, numbers in violations.items():
        print(f"{name}: {', '.join(map(str, numbers)) or 'none'}")
    return not any(violations.values())


if __name__ == "__main__":
    sys.exit(not asyncio.run(main()))

"""The bank's tables as a test sees them: transfers to accept, transactions that are open, the check at the end."""

import random
from typing import Final

from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from examples.bank.bank import accept
from examples.bank.check import find_violations
from examples.bank.tables import Account, Base, Transfer, dlq_table, outbox_table
from faststream_outbox import OutboxBroker

ACCOUNTS: Final = 30
# Has written, and waits for its client to go on. Only handlers' transactions do: a claim is a statement of its own.
# Those in the middle of a statement may be over before they are heard of, and are not counted.
_OPEN: Final = text(
    "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name "
    "AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
)


class Books:
    """One bank, in one database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sessions = async_sessionmaker(engine)
        self._broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table)

    async def open(self) -> None:
        """Make the tables and the accounts."""
        async with self._engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
            accounts = [{"id": number, "opening_cents": 10_000, "cents": 10_000} for number in range(ACCOUNTS)]
            await connection.execute(insert(Account), accounts)

    async def accept(self, rng: random.Random) -> None:
        """Accept a transfer; some fail once when they are moved, and some are rolled back at the last moment."""
        source, target = rng.sample(range(ACCOUNTS), 2)
        stumbles = rng.random() < 0.05
        async with self._sessions() as session:
            await accept(
                self._broker, session, source=source, target=target, cents=rng.randint(1, 500), stumbles=stumbles
            )
            if rng.random() < 0.95:
                await session.commit()

    async def waiting(self) -> tuple[int, int]:
        """Count what is in the outbox: what nobody has claimed, and all of it."""
        unclaimed = func.count().filter(outbox_table.c.acquired_token.is_(None))
        async with self._sessions() as session:
            row = (await session.execute(select(unclaimed, func.count()).select_from(outbox_table))).one()
            return row[0], row[1]

    async def transfers(self) -> int:
        """Count what was accepted."""
        async with self._sessions() as session:
            return await session.scalar(select(func.count()).select_from(Transfer)) or 0

    async def open_transactions(self, worker: str) -> list[str]:
        """Tell the latest statement of each transaction in which a worker has written, and not yet committed."""
        async with self._sessions() as session:
            return list(await session.scalars(_OPEN, {"name": worker}))

    async def violations(self) -> dict[str, list[int]]:
        """Tell what is wrong, dead letters included: there is no reason for one here."""
        async with self._engine.connect() as connection:
            found = await find_violations(connection)
            found["Dead letters"] = sorted(await connection.scalars(select(dlq_table.c.original_id)))
        return {name: numbers for name, numbers in found.items() if numbers}

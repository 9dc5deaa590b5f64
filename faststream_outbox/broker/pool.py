"""Whether an engine's pool has the connections that a broker will hold."""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool, StaticPool

from faststream_outbox.storage.commits import autocommits

# Each subscriber claims on one connection and settles on another, whatever its max_workers is.
PER_SUBSCRIBER: Final = 2
# Somebody must be able to publish meanwhile, and to answer a ping.
FOR_OTHERS: Final = 1


def check_pool(engine: AsyncEngine | None, *, subscribers: int, handlers: int) -> None:
    """Refuse to start on a pool that is too small, which would wait for ever for a connection.

    `handlers` is how many handlers may run side by side that have a transaction of their own.
    """
    if engine is None:
        raise RuntimeError("A broker without an engine can only publish: OutboxBroker(engine, …) to consume.")
    if handlers and autocommits(engine.sync_engine):
        raise RuntimeError("OutboxSession needs transactions, and this engine commits each statement: AUTOCOMMIT.")
    pool = engine.sync_engine.pool
    if isinstance(pool, StaticPool):
        raise RuntimeError("A StaticPool has one connection for all, and a subscriber needs two of its own.")  # noqa: TRY004 - no argument is wrong
    if not isinstance(pool, QueuePool):
        return
    overflow = pool._max_overflow  # noqa: SLF001 - SQLAlchemy does not tell it otherwise
    needed, given = PER_SUBSCRIBER * subscribers + handlers + FOR_OTHERS, pool.size() + overflow
    if overflow >= 0 and given < needed:
        transactions = f"the handlers that ask for a session hold one each ({handlers}), " if handlers else ""
        raise RuntimeError(
            f"Each subscriber ({subscribers} here) holds {PER_SUBSCRIBER} connections, {transactions}and publishing "
            f"needs one more: {needed} in all, and this engine's pool gives {given}. "
            f"Use create_async_engine(…, pool_size={needed})."
        )

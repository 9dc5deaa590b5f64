"""Checks that the pool of an engine is large enough for a broker."""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool, StaticPool

from faststream_outbox.storage.commits import autocommits

# A subscriber claims on one connection and settles on another, whatever its max_workers is.
PER_SUBSCRIBER: Final = 2
# For publishing and ping() meanwhile.
FOR_OTHERS: Final = 1


def check_pool(engine: AsyncEngine | None, *, subscribers: int, handlers: int) -> None:
    """Raise `RuntimeError` if the pool is too small: a subscriber would wait for a connection for ever.

    `handlers` is how many handlers with an `OutboxSession` may run at the same time.
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
    overflow = pool._max_overflow  # noqa: SLF001 - SQLAlchemy has no public name for it
    needed, given = PER_SUBSCRIBER * subscribers + handlers + FOR_OTHERS, pool.size() + overflow
    if overflow >= 0 and given < needed:
        transactions = f"the handlers that ask for a session hold one each ({handlers}), " if handlers else ""
        raise RuntimeError(
            f"Each subscriber ({subscribers} here) holds {PER_SUBSCRIBER} connections, {transactions}and publishing "
            f"needs one more: {needed} in all, and this engine's pool gives {given}. "
            f"Use create_async_engine(…, pool_size={needed})."
        )

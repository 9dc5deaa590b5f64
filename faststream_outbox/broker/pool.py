"""How many connections the subscribers of a broker need, and how many the engine's pool gives."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool, StaticPool

from faststream_outbox.operations.doctor.examination import Pool
from faststream_outbox.storage.commits import autocommits
from faststream_outbox.subscriber.usecase import OutboxSubscriber

# A subscriber claims on one connection and settles on another, whatever its max_workers is.
_CONNECTIONS_PER_SUBSCRIBER: Final = 2
# For publishing and ping() meanwhile.
_CONNECTIONS_FOR_OTHERS: Final = 1


def compare_pool(engine: AsyncEngine, subscribers: Sequence[OutboxSubscriber]) -> Pool:
    """Return how many connections the subscribers need, and how many the pool gives."""
    needed = _CONNECTIONS_PER_SUBSCRIBER * len(subscribers) + _handlers(subscribers) + _CONNECTIONS_FOR_OTHERS
    pool = engine.sync_engine.pool
    if isinstance(pool, StaticPool):
        return Pool(needed, 1)
    if not isinstance(pool, QueuePool):
        return Pool(needed, None)
    overflow = pool._max_overflow  # noqa: SLF001 - SQLAlchemy has no public name for it
    return Pool(needed, None if overflow < 0 else pool.size() + overflow)


def _handlers(subscribers: Sequence[OutboxSubscriber]) -> int:
    """Return how many handlers can run at once that hold a connection each, because they ask for a session."""
    return sum(each.config.options.max_workers for each in subscribers if each.shares_transactions)


def check_pool(engine: AsyncEngine | None, subscribers: Sequence[OutboxSubscriber]) -> None:
    """Raise `RuntimeError` if the pool is too small: a subscriber would wait for a connection for ever."""
    if engine is None:
        raise RuntimeError("A broker without an engine can only publish: OutboxBroker(engine, …) to consume.")
    handlers = _handlers(subscribers)
    if handlers and autocommits(engine.sync_engine):
        raise RuntimeError("OutboxSession needs transactions, and this engine commits each statement: AUTOCOMMIT.")
    if isinstance(engine.sync_engine.pool, StaticPool):
        raise RuntimeError("A StaticPool has one connection for all, and a subscriber needs two of its own.")  # noqa: TRY004 - no argument is wrong
    pool = compare_pool(engine, subscribers)
    if pool.given is not None and pool.given < pool.needed:
        transactions = f"the handlers that ask for a session hold one each ({handlers}), " if handlers else ""
        raise RuntimeError(
            f"Each subscriber ({len(subscribers)} here) holds {_CONNECTIONS_PER_SUBSCRIBER} connections, {transactions}"
            f"and publishing needs one more: {pool.needed} in all, and this engine's pool gives {pool.given}. "
            f"Use create_async_engine(…, pool_size={pool.needed})."
        )

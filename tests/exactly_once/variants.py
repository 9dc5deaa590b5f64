"""The bank's broker as it should be, and with one thing wrong each, which the check has to find."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from examples.bank.bank import LEASE_SECONDS, WORKERS, move, notify, router
from examples.bank.messages import NOTIFICATIONS, TRANSFERS, MoneyMoved, TransferAccepted
from examples.bank.tables import dlq_table, outbox_table
from faststream_outbox import ConstantRetry, OutboxBroker
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.storage import Lease, NewRow, PostgresStore, SharedTransaction
from tests.exactly_once.delays import RandomDelays


@dataclass(frozen=True)
class Surroundings:
    """What a broker is built from."""

    engine: AsyncEngine
    delays: RandomDelays
    options: Mapping[str, Any]

    def broker(self, **options: Any) -> OutboxBroker:
        """Make a broker on the bank's tables."""
        return OutboxBroker(self.engine, outbox_table=outbox_table, dlq_table=dlq_table, **self.options, **options)


def sound(around: Surroundings) -> OutboxBroker:
    """Run the bank as the example does."""
    return around.broker(routers=[router])


def apart(around: Surroundings) -> OutboxBroker:
    """Commit in the handler, and have the message deleted afterwards: at least once, and no more than that."""
    broker = around.broker()
    sessions = async_sessionmaker(around.engine)

    @broker.publisher(NOTIFICATIONS)
    @broker.subscriber(
        TRANSFERS,
        max_workers=WORKERS,
        lease_ttl_seconds=LEASE_SECONDS,
        retry_strategy=ConstantRetry(delay_seconds=0.2),
    )
    async def move_apart(transfer: TransferAccepted, message: OutboxMessage) -> MoneyMoved:
        async with sessions.begin() as session:
            moved = await move(transfer, session, message)
        await around.delays.pause()
        return moved

    @broker.subscriber(NOTIFICATIONS, lease_ttl_seconds=LEASE_SECONDS)
    async def notify_apart(moved: MoneyMoved) -> None:
        async with sessions.begin() as session:
            await notify([moved], session)
        await around.delays.pause()

    return broker


class UnfencedTransaction(SharedTransaction):
    """Commits whether or not the messages could be deleted."""

    async def settle(self, leases: Sequence[Lease], outputs: Sequence[NewRow], *, head: Lease | None = None) -> bool:
        """Delete what is still there, and commit."""

        async def whatever_was_deleted() -> bool:
            await self._delete(self.session, leases, outputs, head)
            return True

        return await self.commit(whatever_was_deleted)


def unfenced(around: Surroundings) -> OutboxBroker:
    """Commit although the lease was lost."""
    broker = sound(around)
    store = broker.client.store
    assert isinstance(store, PostgresStore)

    def share_transaction(leases: Sequence[Lease]) -> UnfencedTransaction:
        shared = PostgresStore.share_transaction(store, leases)
        return UnfencedTransaction(shared.session, shared._delete, shared._lock)

    store.share_transaction = share_transaction  # type: ignore[method-assign] # to break it is the point
    return broker


VARIANTS: Final[dict[str, Callable[[Surroundings], OutboxBroker]]] = {
    "sound": sound,
    "apart": apart,
    "unfenced": unfenced,
}

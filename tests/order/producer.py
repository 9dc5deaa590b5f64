"""A process with a real broker that publishes with keys: transactions of one key or many, late commits, rollbacks."""

from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from tests.order.settings import QUEUE, OrderSettings
from tests.soak.producer import Producer, Transaction
from tests.soak.settings import Settings


class OrderProducer(Producer):
    """Some publishers at once, on the same keys as those of other processes."""

    settings: OrderSettings
    # Whoever publishes for a key waits for those before it, of which some are stopped, and is cut off meanwhile.
    reconnect_seconds = 40.0

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        assert isinstance(settings, OrderSettings)
        self.settings = settings
        self._broker = settings.broker(self.engine)

    async def work(self) -> None:
        """Publish until told to stop, and wake the workers."""
        await self._broker.connect()
        await super().work()
        await self._broker.stop()

    async def transact(self) -> int:
        """Publish one by one for a key, or in one statement for many."""
        draw = self.rng.random()
        async with AsyncSession(self.engine) as session:
            transaction = Transaction(self, session)
            if draw < 0.7:
                rows = await self._one_by_one(transaction)
            else:
                rows = await self._at_once(transaction)
            await self.linger(self.settings.lingering)
            await transaction.end(commit=self.rng.random() < 0.9)
        return rows

    async def _one_by_one(self, transaction: Transaction) -> int:
        # One key for all of it: two transactions that lock the same keys one by one, in different orders, wait for
        # each other, as with any rows.
        key, count = self._key(), self.rng.randint(1, 5)
        for _ in range(count):
            name = self.history.new_name()
            delay = self.rng.uniform(0.0, 0.2) if self.rng.random() < self.settings.delayed else None
            later = None if delay is None else timedelta(seconds=delay)
            publish = self._broker.publish
            row_id = await publish(name.encode(), queue=QUEUE, session=transaction.session, key=key, activate_in=later)
            transaction.inserted(name, row_id, delay, key=key)
        return count

    async def _at_once(self, transaction: Transaction) -> int:
        keys = [self._key() for _ in range(self.rng.randint(2, 10))]
        names = [self.history.new_name() for _ in keys]
        bodies = (name.encode() for name in names)
        ids = await self._broker.publish_batch(*bodies, queue=QUEUE, session=transaction.session, keys=keys)
        for name, row_id, key in zip(names, ids, keys, strict=True):
            transaction.inserted(name, row_id, key=key)
        return len(keys)

    def _key(self) -> str | None:
        settings = self.settings
        if self.rng.random() < settings.unkeyed:
            return None
        if self.rng.random() < 0.7:
            return f"hot{self.rng.randrange(settings.hot_keys)}"
        return f"{self.rng.randrange(settings.cold_keys)}"

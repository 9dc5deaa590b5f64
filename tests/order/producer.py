"""A process with a real broker that publishes with keys: transactions of one key or many, late commits, rollbacks.

It also replays dead letters, as an operator does.
"""

import asyncio
from datetime import timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.order.settings import QUEUE, OrderSettings
from tests.soak.history import Replayed, Replaying
from tests.soak.process import OPERATION_SECONDS
from tests.soak.producer import Producer, Transaction
from tests.soak.settings import Settings

# Of one replay: few, so that many keys are busy in different ways.
LETTERS: Final = 20
# For how long it tries again where a key is in flight.
PATIENCE: Final = 0.2
_PUBLISH: Final = text(
    "SELECT outbox_publish(:queue, CAST(:body AS text), key => :key, "
    "deliver_at => now() + make_interval(secs => CAST(:delay AS float8)))"
)
_PUBLISH_BATCH: Final = text("SELECT outbox_publish_batch(:queue, CAST(:bodies AS text[]), keys => :keys)")


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
        async with asyncio.TaskGroup() as group:
            group.create_task(super().work())
            if self.settings.replay_every:
                group.create_task(self.keep("replay", self._replay, until=self._done))
        await self._broker.stop()

    async def _replay(self) -> None:
        """Replay some dead letters, by their ids; what has failed for good again since has another id."""
        operations = self._broker.operations
        async with asyncio.timeout(OPERATION_SECONDS):
            letters = {each.id: each.body.raw.decode() for each in (await operations.dead_letters(limit=100)).items}
            chosen = self.rng.sample(sorted(letters), min(LETTERS, len(letters)))
            if chosen:
                call = self.history.new_name()
                self.history.write(Replaying, call, [letters[each] for each in chosen])
                result = await operations.replay(chosen, reason="a soak", patience=PATIENCE)
                back = [letters[each] for each in chosen if each not in result.skipped]
                self.history.write(Replayed, call, back)
        self.worked("replay")
        await self.pause(self.settings.replay_every * self.rng.uniform(0.5, 1.5))

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
            row_id = await self.publish_one(transaction.session, name, key, delay)
            transaction.inserted(name, row_id, delay, key=key)
        return count

    async def publish_one(self, session: AsyncSession, name: str, key: str | None, delay: float | None) -> int | None:
        """Publish one message."""
        later = None if delay is None else timedelta(seconds=delay)
        return await self._broker.publish(name.encode(), queue=QUEUE, session=session, key=key, activate_in=later)

    async def _at_once(self, transaction: Transaction) -> int:
        keys = [self._key() for _ in range(self.rng.randint(2, 10))]
        names = [self.history.new_name() for _ in keys]
        ids = await self.publish_many(transaction.session, names, keys)
        for name, row_id, key in zip(names, ids, keys, strict=True):
            transaction.inserted(name, row_id, key=key)
        return len(keys)

    async def publish_many(self, session: AsyncSession, names: list[str], keys: list[str | None]) -> list[int]:
        """Publish messages in one statement."""
        bodies = (name.encode() for name in names)
        return await self._broker.publish_batch(*bodies, queue=QUEUE, session=session, keys=keys)

    def _key(self) -> str | None:
        settings = self.settings
        if self.rng.random() < settings.unkeyed:
            return None
        if self.rng.random() < 0.7:
            return f"hot{self.rng.randrange(settings.hot_keys)}"
        return f"{self.rng.randrange(settings.cold_keys)}"


class MixedProducer(OrderProducer):
    """Publishes half of its messages by the functions in SQL, as a program in another language would."""

    async def publish_one(self, session: AsyncSession, name: str, key: str | None, delay: float | None) -> int | None:
        """Publish one message, by Python or by its function."""
        if self.rng.random() < 0.5:
            return await super().publish_one(session, name, key, delay)
        row_id: int = await session.scalar(_PUBLISH, {"queue": QUEUE, "body": name, "key": key, "delay": delay})
        return row_id

    async def publish_many(self, session: AsyncSession, names: list[str], keys: list[str | None]) -> list[int]:
        """Publish messages in one statement, by Python or by its function."""
        if self.rng.random() < 0.5:
            return await super().publish_many(session, names, keys)
        ids: list[int] = await session.scalar(_PUBLISH_BATCH, {"queue": QUEUE, "bodies": names, "keys": keys})
        return ids

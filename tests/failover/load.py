"""Producers and consumers of every kind on one outbox, and what must be true after any failure of its server."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import URL, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import AdvisoryLocks, ConstantRetry, HashShards, HeadLease, OutboxBroker
from faststream_outbox.annotations import OutboxMessage, OutboxSession
from faststream_outbox.relay import Relay
from faststream_outbox.storage.ordering import Ordering
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import Inbox, RedisStream
from tests.waiting import until

ORDERED: Final[dict[str, Ordering]] = {
    "head lease": HeadLease(),
    "advisory locks": AdvisoryLocks(),
    "hash shards": HashShards(count=4),
}
ONCE: Final = "exactly once"
RELAYED: Final = "relayed"
QUEUES: Final = (*ORDERED, ONCE, RELAYED)
# Every queue gets rows of these keys, and rows without a key.
KEYS: Final = ("a", "b", None)
_SOME: Final = 5
# How long a row waits whose claim was lost with the server: longer than the outage of the test.
_OPTIONS: Final[dict[str, Any]] = {
    "lease_ttl_seconds": 4.0,
    "retry_strategy": ConstantRetry(delay_seconds=0.1, max_attempts=None),
}


@dataclass
class Stream:
    """The messages of one queue and key, numbered by their producer, and when each was committed and arrived."""

    committed: dict[int, float] = field(default_factory=dict)
    # The commit failed, and whether the server had done it is unknown.
    uncertain: set[int] = field(default_factory=set)
    arrived: list[tuple[int, float]] = field(default_factory=list)

    def check(self, name: str, *, ordered: bool) -> None:
        """Check that nothing was lost or invented, and that the first arrivals keep the order."""
        first = list(dict.fromkeys(number for number, _ in self.arrived))
        assert self.committed.keys() - set(first) == set(), f"{name}: lost"
        assert set(first) - self.committed.keys() - self.uncertain == set(), f"{name}: never committed"
        if ordered:
            assert first == sorted(first), f"{name}: out of order"

    def recovery(self, since: float) -> float:
        """Return how long after a moment the next message was handled."""
        return min(at for _, at in self.arrived if at > since) - since

    def handled_new(self, since: float) -> bool:
        """Return whether a message was handled that was committed after a moment."""
        return any(self.committed.get(number, 0.0) > since for number, _ in reversed(self.arrived))


class Load:
    """Publishes to all queues without pause, and keeps what becomes of each message."""

    def __init__(self, address: URL, relayed: RedisStream) -> None:
        self.streams = defaultdict[tuple[str, str | None], Stream](Stream)
        self.records = Records()
        self._address = address
        self._relayed = relayed
        self._producing = True

    @asynccontextmanager
    async def running(self, *, consumers: int = 2) -> AsyncIterator[None]:
        """Run it; at the end stop to publish, wait until all rows are gone, and stop the consumers."""
        async with AsyncExitStack() as stack:
            outbox = await self._open(stack)
            await outbox.create()
            await outbox.run("CREATE TABLE effects (key text, number int)")
            for _ in range(consumers):
                broker = broker_on(await self._open(stack), self.records)
                self._subscribe(broker)
                await stack.enter_async_context(broker)
                await broker.start()
            inbox = await stack.enter_async_context(self._relayed.listening())
            broker = broker_on(await self._open(stack), self.records)
            relay = Relay(broker, to=self._relayed.broker(), routes={RELAYED: self._relayed.destination}, **_OPTIONS)
            await stack.enter_async_context(relay)
            publishing = broker_on(outbox)
            producers = [asyncio.create_task(self._produce(publishing, outbox, q, k)) for q in QUEUES for k in KEYS]
            yield
            self._producing = False
            await asyncio.gather(*producers)
            await until(outbox.rows, lambda rows: not rows)
            await self._collect(outbox, inbox)

    async def _open(self, stack: AsyncExitStack) -> PostgresBackend:
        engine = create_async_engine(self._address, pool_size=20)
        stack.push_async_callback(engine.dispose)
        return PostgresBackend(engine)

    def _subscribe(self, broker: OutboxBroker) -> None:
        async def keep(number: int, message: OutboxMessage) -> None:
            queue, key = message.raw_message.queue, message.raw_message.entity_key
            self.streams[queue, key].arrived.append((number, time.monotonic()))

        for queue, strategy in ORDERED.items():
            broker.subscriber(queue, ordering=strategy, max_workers=4, **_OPTIONS)(keep)

        @broker.subscriber(ONCE, max_workers=4, **_OPTIONS)
        async def write(number: int, message: OutboxMessage, session: OutboxSession) -> None:
            key = message.raw_message.entity_key
            values = {"key": key, "number": number}
            await session.execute(text("INSERT INTO effects VALUES (:key, :number)"), values)
            self.streams[ONCE, key].arrived.append((number, time.monotonic()))

    async def _produce(self, broker: OutboxBroker, outbox: PostgresBackend, queue: str, key: str | None) -> None:
        stream, number = self.streams[queue, key], 0
        while self._producing:
            number += 1
            try:
                async with asyncio.timeout(10), outbox.transaction() as session:
                    await broker.publish(number, queue=queue, key=key, session=session)
            except (DBAPIError, OSError):
                stream.uncertain.add(number)
                await asyncio.sleep(0.1)
            else:
                stream.committed[number] = time.monotonic()
            await asyncio.sleep(0.005)

    async def _collect(self, outbox: PostgresBackend, inbox: Inbox) -> None:
        committed = sum(len(self.streams[RELAYED, key].committed) for key in KEYS)
        await inbox.until(committed)
        for message in inbox.messages:
            key = message.headers.get("outbox_key")
            self.streams[RELAYED, key].arrived.append((int(message.body), message.received_at))
        effects = await outbox.run("SELECT key, number FROM effects")
        self.effects = Counter((str(key) if key else None, int(str(number))) for key, number in effects)

    def check(self) -> None:
        """Check every stream, and that each effect of an exactly-once handler is there once."""
        for (queue, key), stream in self.streams.items():
            stream.check(f"queue {queue}, key {key}", ordered=key is not None)
        assert set(self.effects.values()) == {1}
        for key in KEYS:
            assert self.streams[ONCE, key].committed.keys() <= {n for its_key, n in self.effects if its_key == key}

    async def until_flowing(self) -> None:
        """Wait until some messages of every stream were handled."""
        await until(lambda: all(len(stream.arrived) >= _SOME for stream in self._handled()))

    async def until_recovered(self, since: float) -> None:
        """Wait until new messages of every stream were handled; those that were relayed are read at the end."""
        await until(lambda: all(stream.handled_new(since) for stream in self._handled()))

    def _handled(self) -> list[Stream]:
        return [self.streams[queue, key] for queue in QUEUES if queue != RELAYED for key in KEYS]

    def recovery(self, since: float) -> dict[str, float]:
        """Return for each queue how long after a moment all its keys were handled again."""
        return {queue: max(self.streams[queue, key].recovery(since) for key in KEYS) for queue in QUEUES}


def describe(recovery: dict[str, float]) -> str:
    """Return one line for the output of a test."""
    times = ", ".join(f"{queue} {seconds:.2f} s" for queue, seconds in recovery.items())
    return f"Messages of every key were handled again so long after the promotion: {times}."

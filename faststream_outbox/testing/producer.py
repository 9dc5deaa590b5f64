"""How messages are published in tests: handled before `publish` returns, or committed at once."""

import asyncio
import contextvars
import threading
from collections.abc import Coroutine, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Self, cast

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.publisher.producer import OutboxProducer
from faststream_outbox.response import OutboxPublishCommand
from faststream_outbox.storage import NewRow, OutboxRow
from faststream_outbox.storage.memory.lane import MemoryConnection
from faststream_outbox.storage.memory.store import MemoryStore
from faststream_outbox.subscriber.call import Call
from faststream_outbox.subscriber.usecase import OutboxSubscriber


class CommittingProducer(OutboxProducer):
    """Writes what comes without a session in a transaction of its own."""

    @classmethod
    def of(cls, broker: OutboxBroker) -> Self:
        """Take the place of a broker's producer."""
        config = broker.config.broker_config
        producer = cls(parser=config.broker_parser, decoder=config.broker_decoder)
        producer.connect(config)
        return producer

    async def _insert(self, cmd: OutboxPublishCommand, rows: list[NewRow]) -> list[int]:
        cmd.alone = True
        return await super()._insert(cmd, rows)


class DeliveringProducer(OutboxProducer):
    """Puts rows into memory and has them handled there and then, whenever they are due."""

    @classmethod
    def of(cls, broker: OutboxBroker, brokers: Sequence[OutboxBroker]) -> Self:
        """Take the place of a broker's producer; messages reach the subscribers of all these brokers."""
        config = broker.config.broker_config
        producer = cls(parser=config.broker_parser, decoder=config.broker_decoder)
        producer.connect(config)
        producer._brokers = brokers
        return producer

    _brokers: Sequence[OutboxBroker] = ()

    async def _insert(self, cmd: OutboxPublishCommand, rows: list[NewRow]) -> list[int]:
        ids = await super()._insert(cmd, rows)
        if cmd.synchronous:
            _run_in_thread(self._deliver_all(ids))
        else:
            await self._deliver_all(ids)
        return ids

    async def _deliver_all(self, ids: Iterable[int]) -> None:
        """Deliver every row; what the first handler that failed has raised surfaces when all have had their turn."""
        failures: list[BaseException] = []
        for subscriber, calls in self._calls(ids):
            for rows in calls:
                # The handler of one may have taken care of the next, or have parked its key.
                if rows := [row for row in rows if row.id in self._store.rows and not self._store.is_parked(row)]:
                    try:
                        await self._deliver(rows, subscriber)
                    except Exception as error:  # noqa: BLE001 - surfaces below
                        failures.append(error)
        if failures:
            raise failures[0]

    def _calls(self, ids: Iterable[int]) -> Iterable[tuple[OutboxSubscriber, list[list[OutboxRow]]]]:
        """Tell which subscribers are called for these rows, and with which of them."""
        rows = [row for row_id in ids if (row := self._store.rows.get(row_id)) is not None]
        for queue, group in groupby(rows, key=attrgetter("queue")):
            subscriber = self._subscriber_of(queue)
            if subscriber is not None:
                together, most = list(group), subscriber.config.options.rows_per_call
                yield subscriber, [together[n : n + most] for n in range(0, len(together), most)]

    @property
    def _store(self) -> MemoryStore:
        return cast("MemoryStore", self.config.store)

    def _subscriber_of(self, queue: str) -> OutboxSubscriber | None:
        subscribers = (cast("OutboxSubscriber", each) for broker in self._brokers for each in broker.subscribers)
        return next((each for each in subscribers if queue in each.queues and each.calls), None)

    async def _deliver(self, rows: Sequence[OutboxRow], subscriber: OutboxSubscriber) -> None:
        lane = MemoryConnection(self._store)
        leased = [lane.lease(row, subscriber.config.options.lease_ttl_seconds) for row in rows]
        call = Call(self._store, leased, shares_transaction=subscriber.shares_transactions)
        error = None
        try:
            await subscriber.process(call)
        except BaseException as raised:  # noqa: BLE001 - surfaces below, after the rows were settled
            error = raised
        known = set(self._store.rows)
        await lane.settle((await call.conclude(subscriber.judge, error)).settlements)
        if error is not None:
            raise error
        await self._deliver_all(sorted(set(self._store.rows) - known))


def _run_in_thread(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end beside the loop that may be running here, which waits for it."""
    failures: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            context.run(asyncio.run, coroutine)
        except BaseException as error:  # noqa: BLE001 - raised where it was called
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]

"""The producers of tests: one delivers before `publish` returns, one commits at once."""

import asyncio
import contextvars
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.publisher.producer import OutboxProducer
from faststream_outbox.response import OutboxPublishCommand
from faststream_outbox.storage import NewRow, OutboxRow
from faststream_outbox.storage.memory.lane import MemoryConnection
from faststream_outbox.storage.memory.store import MemoryStore
from faststream_outbox.subscriber.call import Call
from faststream_outbox.subscriber.usecase import OutboxSubscriber


class CommittingProducer(OutboxProducer):
    """Inserts messages that come without a session in a transaction of its own."""

    async def _insert(self, cmd: OutboxPublishCommand, rows: list[NewRow]) -> list[int]:
        cmd.own_transaction = True
        return await super()._insert(cmd, rows)


class DeliveringProducer(OutboxProducer):
    """Inserts rows in memory and at once calls their handlers on some brokers, also for rows that are due later."""

    def __init__(self, config: OutboxBrokerConfig, brokers: Sequence[OutboxBroker]) -> None:
        super().__init__(config)
        self._brokers = brokers

    async def _insert(self, cmd: OutboxPublishCommand, rows: list[NewRow]) -> list[int]:
        ids = await super()._insert(cmd, rows)
        if cmd.synchronous:
            _run_in_thread(self._deliver_all(ids))
        else:
            await self._deliver_all(ids)
        return ids

    async def _deliver_all(self, ids: Iterable[int]) -> None:
        """Deliver every row, then raise what the first failed handler raised."""
        failures: list[BaseException] = []
        for subscriber, calls in self._calls(ids):
            for rows in calls:
                # The handler of one row may have deleted the next, or parked its key.
                if rows := [row for row in rows if row.id in self._store.rows and not self._store.is_parked(row)]:
                    try:
                        await self._deliver(rows, subscriber)
                    except Exception as error:  # noqa: BLE001 - raised below
                        failures.append(error)
        if failures:
            raise failures[0]

    def _calls(self, ids: Iterable[int]) -> Iterable[tuple[OutboxSubscriber, list[list[OutboxRow]]]]:
        """Return the subscribers to call for these rows, each with the rows of every call."""
        rows = [row for row_id in ids if (row := self._store.rows.get(row_id)) is not None]
        for queue, group in groupby(rows, key=attrgetter("queue")):
            if (subscriber := subscriber_of(queue, self._brokers)) is not None:
                together, most = list(group), subscriber.config.options.rows_per_call
                yield subscriber, [together[n : n + most] for n in range(0, len(together), most)]

    @property
    def _store(self) -> MemoryStore:
        return cast("MemoryStore", self.config.store)

    async def _deliver(self, rows: Sequence[OutboxRow], subscriber: OutboxSubscriber) -> None:
        lane = MemoryConnection(self._store)
        leased = [lane.lease(row, subscriber.config.options.lease_ttl_seconds) for row in rows]
        call = Call(self._store, leased, shares_transaction=subscriber.shares_transactions)
        error = None
        try:
            await subscriber.process(call)
        except BaseException as raised:  # noqa: BLE001 - raised below, after the rows were settled
            error = raised
        known = set(self._store.rows)
        await lane.settle(await call.conclude(subscriber.judge, error))
        if error is not None:
            raise error
        await self._deliver_all(sorted(set(self._store.rows) - known))


def subscriber_of(queue: str, brokers: Iterable[OutboxBroker]) -> OutboxSubscriber | None:
    """Return the first subscriber of a queue that has a handler; None if no broker has one."""
    subscribers = (cast("OutboxSubscriber", each) for broker in brokers for each in broker.subscribers)
    return next((each for each in subscribers if queue in each.queues and each.calls), None)


def _run_in_thread(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread and wait for it: an event loop may be running in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()

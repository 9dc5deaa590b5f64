"""The producers of tests: one delivers before `publish` returns, one commits at once."""

import asyncio
import contextvars
import time
from collections.abc import Container, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, cast
from uuid import uuid4

from sqlalchemy.orm import Session
from sqlalchemy.util.concurrency import await_only, in_greenlet

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.engine.context import EngineContext
from faststream_outbox.engine.settle.settler import Settler
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.publisher.producer import OutboxProducer, PendingRows
from faststream_outbox.response import OutboxPublishCommand
from faststream_outbox.storage import NewRow, OutboxRow
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.memory.lane import MemoryLane
from faststream_outbox.storage.memory.store import MemoryStore
from faststream_outbox.subscriber.call import Call
from faststream_outbox.subscriber.usecase import OutboxSubscriber


class CommittingProducer(OutboxProducer):
    """Inserts messages that come without a session in a transaction of its own."""

    async def _insert(self, cmd: OutboxPublishCommand, rows: Sequence[NewRow]) -> list[int]:
        cmd.own_transaction = True
        return await super()._insert(cmd, rows)


class DeliveringProducer(OutboxProducer):
    """Inserts rows in memory and at once calls their handlers, also for rows that are due later.

    `session` is for a dependency of the broker that asks for one when only the mock of a publisher takes a row.
    """

    def __init__(self, config: OutboxBrokerConfig, takers: "Takers", session: Any) -> None:
        super().__init__(config)
        self._takers = takers
        self._session = session

    async def _write(self, cmd: OutboxPublishCommand, rows: Sequence[NewRow]) -> list[int]:
        ids = await super()._write(cmd, rows)
        # After the publish has been recorded: an error of a handler is none of the publish.
        delivering = self._deliver_all(ids)
        if cmd.synchronous:
            _run_in_thread(delivering)
        else:
            await delivering
        return ids

    def insert_collected(self, session: Session, pending: Sequence[PendingRows]) -> list[int]:
        """Insert what a session has collected, and deliver it."""
        ids = super().insert_collected(session, pending)
        delivering = self._deliver_all(ids)
        if in_greenlet():  # the session is that of an AsyncSession
            await_only(delivering)
        else:
            _run_in_thread(delivering)
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
            if (subscriber := self._takers.of(queue)) is not None:
                together, most = list(group), subscriber.config.options.rows_per_call
                yield subscriber, [together[n : n + most] for n in range(0, len(together), most)]

    @property
    def _store(self) -> MemoryStore:
        return cast("MemoryStore", self.config.store)

    async def _deliver(self, rows: Sequence[OutboxRow], subscriber: OutboxSubscriber) -> None:
        if subscriber in self._takers.fakes:
            await self._show(rows, subscriber)
            return
        await self._deliver_all(await Delivery(self._store, rows, subscriber).run())

    async def _show(self, rows: Sequence[OutboxRow], fake: OutboxSubscriber) -> None:
        """Give rows to the mock of a publisher, and leave them as they are: no handler has taken them."""
        now, token = self._store.clock(), uuid4()
        leased = [replace(row, acquired_token=token, acquired_epoch=now, claimed_at=lease_now()) for row in rows]
        call = Call(self._store, leased, shares_transaction=False)
        for delivery in call.deliveries:
            delivery.open_session = lambda: self._session
        await fake.process(call)


class Delivery:
    """One call of a handler, with the events that the loops of a pipeline would record for it."""

    def __init__(self, store: MemoryStore, rows: Sequence[OutboxRow], subscriber: OutboxSubscriber) -> None:
        options = subscriber.config.options
        self._store = store
        self._subscriber = subscriber
        self._context = EngineContext(
            store, subscriber.queues, options, monitor=subscriber.monitor, announce=None, row_type=OutboxDelivery
        )
        self._settler = Settler(self._context, expect=lambda _: None)
        lane = MemoryLane(store)
        self._rows = [OutboxDelivery.of(lane.lease(row, options.lease_ttl_seconds)) for row in rows]
        self._call = Call(store, self._rows, shares_transaction=subscriber.shares_transactions)
        self._context.ledger.add(self._rows, lease_now() + options.lease_ttl_seconds)
        self._context.row_events.claimed(self._context.queues, self._rows)

    async def run(self) -> list[int]:
        """Call the handler and settle its rows; raise what it raised, or return the ids of the rows of its answer."""
        error = await self._run_handler()
        known = set(self._store.rows)
        self._settler.put(*await self._call.conclude(self._subscriber.judge, error))
        self._settler.flush_soon()
        while len(self._context.ledger):
            await self._settler.step()
        if error := error or self._call.failed_commit:
            raise error
        return sorted(set(self._store.rows) - known)

    async def _run_handler(self) -> BaseException | None:
        """Call the handler; return what it raised."""
        began_at = time.monotonic()
        for row in self._rows:
            row.began_at = began_at
        self._context.row_events.dispatched(self._rows)
        try:
            await self._subscriber.process(self._call)
        except BaseException as error:  # noqa: BLE001 - raised after the rows were settled
            return error
        finally:
            self._context.ledger.finish(self._rows)
        return None


@dataclass(frozen=True)
class Takers:
    """The subscribers that take what is published in a test.

    Args:
        brokers: The brokers that share a table.
        fakes: The subscribers that stand behind publishers, so that these have a mock.
        captured: The queues whose rows are kept instead of being handled; True for all queues.

    """

    brokers: Sequence[OutboxBroker]
    fakes: Sequence[Any]
    captured: Literal[True] | Container[str]

    def of(self, queue: str) -> OutboxSubscriber | None:
        """Return the subscriber to call for a row; a fake one only where no handler takes it."""
        return self.real(queue) or next((each for each in self._all(queue) if each in self.fakes), None)

    def real(self, queue: str) -> OutboxSubscriber | None:
        """Return the first subscriber of a queue that has a handler of the application; None if it is captured."""
        if self.captured is True or queue in self.captured:
            return None
        return next((each for each in self._all(queue) if each.calls and each not in self.fakes), None)

    def _all(self, queue: str) -> Iterator[OutboxSubscriber]:
        subscribers = (cast("OutboxSubscriber", each) for broker in self.brokers for each in broker.subscribers)
        return (each for each in subscribers if queue in each.queues)


def _run_in_thread(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread and wait for it: an event loop may be running in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()

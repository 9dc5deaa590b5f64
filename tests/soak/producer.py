"""A producer: transactions that commit late, roll back or break; timers, timers twice, and cancels."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.storage import NewRow, TimerConflict
from tests.soak.history import Cancelled, Committed, Committing, Inserted, Refused, RolledBack
from tests.soak.process import OPERATION_SECONDS, SoakProcess
from tests.soak.settings import QUEUES

PUBLISHERS: Final = 8
TIMERS: Final = QUEUES[-1]


class Transaction:
    """One transaction of a caller's, which the log follows to its end."""

    def __init__(self, producer: SoakProcess, session: AsyncSession) -> None:
        self.session = session
        self.name = producer.history.new_name()
        self.began = time.monotonic()
        self._producer = producer

    async def insert(self, queue: str, *, delay: float | None = None) -> None:
        """Insert one row."""
        uid = self._producer.history.new_name()
        row_id = await self._producer.store.insert(self.session, NewRow(queue, uid.encode(), activate_in=_delta(delay)))
        self.inserted(uid, row_id, delay)

    async def insert_many(self, queues: Sequence[str]) -> None:
        """Insert rows in one statement."""
        uids = [self._producer.history.new_name() for _ in queues]
        rows = [NewRow(queue, uid.encode()) for queue, uid in zip(queues, uids, strict=True)]
        for uid, row_id in zip(uids, await self._producer.store.insert_many(self.session, rows), strict=True):
            self.inserted(uid, row_id)

    async def insert_timer(self, delay: float, timer_id: str | None = None, *, extend: bool = False) -> str:
        """Insert a timer, of a name of its own or of one that is there already."""
        uid, asked = self._producer.history.new_name(), time.monotonic()
        timer_id = timer_id or uid
        row = NewRow(TIMERS, uid.encode(), timer_id=timer_id, activate_in=_delta(delay))
        conflict: TimerConflict = "extend" if extend else "ignore"
        row_id = await self._producer.store.insert(self.session, row, timer_conflict=conflict)
        if row_id is None:
            self._producer.history.write(Refused, asked, timer_id)
        else:
            self.inserted(uid, row_id, delay, timer_id)
        return timer_id

    async def cancel(self, timer_id: str) -> None:
        """Cancel a timer that was published once."""
        asked = time.monotonic()
        if await self._producer.store.cancel_timer(self.session, queue=TIMERS, timer_id=timer_id):
            self._producer.history.write(Cancelled, self.name, asked, timer_id)

    async def end(self, *, commit: bool) -> bool:
        """Commit or roll back."""
        if commit:
            self._producer.history.write(Committing, self.name)
            await self.session.commit()
            self._producer.history.write(Committed, self.name)
        else:
            self._producer.history.write(RolledBack, self.name)
            await self.session.rollback()
        return commit

    def inserted(
        self,
        uid: str,
        row_id: int | None,
        delay: float | None = None,
        timer_id: str | None = None,
        key: str | None = None,
    ) -> None:
        """Tell of a row that was inserted."""
        self._producer.history.write(Inserted, self.name, uid, row_id, self.began, delay or 0.0, timer_id, key)


class Producer(SoakProcess):
    """Some publishers at once, each with one transaction at a time."""

    async def work(self) -> None:
        """Publish until told to stop; when the round is drained there is nothing left to do."""
        async with asyncio.TaskGroup() as publishers:
            for number in range(PUBLISHERS):
                where = f"publish {number}"
                publishers.create_task(self.keep(where, partial(self.publish, where), until=self._done))

    def _done(self) -> bool:
        return self.over or self.calm.is_set()

    async def publish(self, where: str) -> None:
        """Run one transaction, and pause so that the rate is kept."""
        began = time.monotonic()
        async with asyncio.timeout(OPERATION_SECONDS):
            rows = await self.transact()
        self.worked(where)
        spent = time.monotonic() - began
        await self.pause(max(0.0, rows * PUBLISHERS / self.settings.rate - spent))

    async def transact(self) -> int:
        """Run one transaction, or a few that belong together; return how many rows it was about."""
        draw = self.rng.random()
        if draw < 0.2:
            return await self._timer()
        return await (self._batch() if draw < 0.5 else self._single_rows())

    async def _single_rows(self) -> int:
        count = self.rng.randint(1, 4)
        async with AsyncSession(self.engine) as session:
            transaction = Transaction(self, session)
            for _ in range(count):
                delay = self.rng.uniform(0.0, 0.3) if self.rng.random() < 0.1 else None
                await transaction.insert(self.rng.choice(QUEUES), delay=delay)
            await self.linger()
            await transaction.end(commit=self.rng.random() < 0.8)
        return count

    async def _batch(self) -> int:
        queues = [self.rng.choice(QUEUES) for _ in range(self.rng.randint(2, 10))]
        async with AsyncSession(self.engine) as session:
            transaction = Transaction(self, session)
            await transaction.insert_many(queues)
            await self.linger()
            await transaction.end(commit=self.rng.random() < 0.8)
        return len(queues)

    async def _timer(self) -> int:
        """Publish a timer, and perhaps publish it again or cancel it about when it is due."""
        delay = self.rng.uniform(0.1, 0.8)
        async with AsyncSession(self.engine) as session:
            transaction = Transaction(self, session)
            timer_id = await transaction.insert_timer(delay)
            if not await transaction.end(commit=self.rng.random() < 0.9):
                return 1
        draw = self.rng.random()
        if draw < 0.3:
            return 1
        await self.pause(delay * self.rng.uniform(0.3, 1.8))
        async with AsyncSession(self.engine) as session:
            transaction = Transaction(self, session)
            if draw < 0.6:
                await transaction.insert_timer(delay, timer_id, extend=self.rng.random() < 0.5)
            else:
                await transaction.cancel(timer_id)
            await self.linger()
            await transaction.end(commit=self.rng.random() < 0.8)
        return 1

    async def linger(self, share: float = 1.0) -> None:
        """Commit late now and then: what has a smaller id then appears after what has a greater one."""
        draw = self.rng.random()
        await self.pause(0.0 if draw < 0.6 else share * self.rng.uniform(0.0, 0.2 if draw < 0.9 else 1.0))


def _delta(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)

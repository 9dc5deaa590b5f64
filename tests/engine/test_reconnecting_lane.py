"""A lane that does not answer is thrown away, and the next operation opens another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from faststream_outbox.engine.reconnecting_lane import ReconnectingLane
from faststream_outbox.storage import MemoryStore, StoreLane
from faststream_outbox.storage.memory.lane import MemoryLane


class Counting(MemoryStore):
    """Counts its lanes, and may be silent when one is opened."""

    opened = 0
    closed = 0
    silent = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreLane]:
        if self.silent:
            await asyncio.Event().wait()
        self.opened += 1
        try:
            yield MemoryLane(self)
        finally:
            self.closed += 1


async def silence(_connection: StoreLane) -> None:
    await asyncio.Event().wait()


async def answer(_connection: StoreLane) -> str:
    return "here"


async def test_an_operation_that_never_ends_is_given_up_with_its_lane() -> None:
    store = Counting()
    lane = ReconnectingLane(store, limit=0.1)
    assert await lane.run(answer) == "here"
    with pytest.raises(TimeoutError, match="No answer within"):
        await lane.run(silence)
    assert (store.opened, store.closed) == (1, 1)
    assert await lane.run(answer) == "here"
    await lane.close()
    assert (store.opened, store.closed) == (2, 2)


async def test_a_lane_that_cannot_be_opened_is_given_up() -> None:
    store = Counting()
    lane = ReconnectingLane(store, limit=0.1)
    store.silent = True
    with pytest.raises(TimeoutError):
        await lane.run(answer)
    store.silent = False
    assert await lane.run(answer) == "here"
    await lane.close()
    assert store.opened == store.closed == 1


class Caller:
    """Somebody who is cancelled while an operation runs that is to end."""

    def __init__(self, lane: ReconnectingLane) -> None:
        self._lane = lane
        self._begun, self._let = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None
        self.got: list[str] = []
        self.went_on = False

    async def _operation(self, _connection: StoreLane) -> str:
        self._begun.set()
        await self._let.wait()
        if self.error is not None:
            raise self.error
        return "here"

    async def _call(self) -> None:
        self.got.append(await self._lane.run(self._operation, finish_if_cancelled=True))
        await asyncio.sleep(0)
        self.went_on = True

    async def be_cancelled(self) -> None:
        call = asyncio.create_task(self._call())
        await self._begun.wait()
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
        self._let.set()
        await call


async def test_who_is_cancelled_meanwhile_gets_what_came_and_goes_no_further() -> None:
    store = Counting()
    lane = ReconnectingLane(store)
    caller = Caller(lane)
    with pytest.raises(asyncio.CancelledError):
        await caller.be_cancelled()
    assert caller.got == ["here"]
    assert not caller.went_on
    assert await lane.run(answer) == "here"
    assert (store.opened, store.closed) == (1, 0), "the lane is as good as before"
    await lane.close()


async def test_who_is_cancelled_meanwhile_gets_its_failure() -> None:
    store = Counting()
    lane = ReconnectingLane(store)
    caller = Caller(lane)
    caller.error = ConnectionError("gone")
    with pytest.raises(ConnectionError, match="gone"):
        await caller.be_cancelled()
    assert (store.opened, store.closed) == (1, 1)


async def test_who_is_cancelled_twice_waits_no_longer() -> None:
    store = Counting()
    lane = ReconnectingLane(store)
    call = asyncio.create_task(lane.run(silence, finish_if_cancelled=True))
    while not store.opened:
        await asyncio.sleep(0)
    for _ in range(2):
        await asyncio.sleep(0.01)
        assert not call.done()
        call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert store.closed == 1

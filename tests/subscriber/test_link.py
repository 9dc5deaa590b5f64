"""A lane that does not answer is thrown away, and the next operation opens another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from faststream_outbox.storage import MemoryStore, StoreConnection
from faststream_outbox.storage.memory_lane import MemoryConnection
from faststream_outbox.subscriber.link import Link


class Counting(MemoryStore):
    """Counts its lanes, and may be silent when one is opened."""

    opened = 0
    closed = 0
    silent = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreConnection]:
        if self.silent:
            await asyncio.Event().wait()
        self.opened += 1
        try:
            yield MemoryConnection(self)
        finally:
            self.closed += 1


async def silence(_lane: StoreConnection) -> None:
    await asyncio.Event().wait()


async def answer(_lane: StoreConnection) -> str:
    return "here"


async def test_an_operation_that_never_ends_is_given_up_with_its_lane() -> None:
    store = Counting()
    link = Link(store, limit=0.1)
    assert await link.run(answer) == "here"
    with pytest.raises(TimeoutError, match="Nothing came within"):
        await link.run(silence)
    assert (store.opened, store.closed) == (1, 1)
    assert await link.run(answer) == "here"
    await link.close()
    assert (store.opened, store.closed) == (2, 2)


async def test_a_lane_that_cannot_be_opened_is_given_up() -> None:
    store = Counting()
    link = Link(store, limit=0.1)
    store.silent = True
    with pytest.raises(TimeoutError):
        await link.run(answer)
    store.silent = False
    assert await link.run(answer) == "here"
    await link.close()
    assert store.opened == store.closed == 1

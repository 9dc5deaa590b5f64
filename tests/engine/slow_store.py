"""A store whose claims take as long as a test wants them to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from faststream_outbox.storage import Claim, StoreLane
from faststream_outbox.storage.memory.lane import MemoryLane
from faststream_outbox.storage.memory.store import MemoryStore
from tests.backends import MemoryBackend


class SlowStore(MemoryStore):
    """Its claims have leased their rows, and do not come back before they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.claiming, self.let = asyncio.Event(), asyncio.Event()
        self.fails = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StoreLane]:
        yield SlowConnection(self)


class SlowConnection(MemoryLane):
    _store: SlowStore

    async def claim(self, *args: Any, **options: Any) -> Claim:
        claim = await super().claim(*args, **options)
        self._store.claiming.set()
        await self._store.let.wait()
        if self._store.fails:
            raise ConnectionError("gone")
        return claim


class SlowBackend(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.store = self.memory = self.slow = SlowStore()

"""New messages as they appear: looks at the ids after the highest known one, again and again."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from faststream_outbox.operations.views import Message
from faststream_outbox.storage.operating.reads import StoreReads

# Ids are drawn before their transactions commit: each look begins at the id that was the highest so long ago.
_LOOK_BACK: Final = 10.0
# How many messages are read at once.
_READ: Final = 1_000


class Tail:
    """Iterates over the messages that appear from now on."""

    def __init__(
        self, read: Callable[..., Awaitable[Any]], admin: StoreReads, *, queue: str | None, interval: float
    ) -> None:
        # Calls a function of the store in a transaction of its own.
        self._read = read
        self._admin = admin
        self._queue = queue
        self._interval = interval
        # Ids that were seen, above the oldest of the marks; and the highest id at each look of the last seconds.
        self._seen: set[int] = set()
        self._marks: deque[tuple[float, int]] = deque()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Return messages, without an end."""
        await self._begin()
        while True:
            ids = await self._look()
            while ids:
                found, ids = await self._read(self._read_some, ids)
                for message in found:
                    yield message
            await asyncio.sleep(self._interval)

    async def _begin(self) -> None:
        ids, highest = await self._ids(None)
        self._seen.update(ids)
        # A transaction that has drawn an id may commit later: look back over as many ids as are known.
        self._marks.append((time.monotonic(), min(ids, default=highest + 1) - 1))
        self._marks.append((time.monotonic(), highest))

    def _read_some(self, session: Any, ids: Sequence[int]) -> tuple[list[Message], Sequence[int]]:
        """Read the first of these messages, and return the ids of the rest."""
        count = self._admin.count_fitting(session, "messages", ids[:_READ])
        found = self._admin.read_messages(session, ids[:count])
        return Message.each(found), ids[count:]

    async def _look(self) -> Sequence[int]:
        now = time.monotonic()
        while len(self._marks) > 1 and now - self._marks[1][0] > _LOOK_BACK:
            self._marks.popleft()
        floor = self._marks[0][1]
        new, after = list[int](), floor
        while True:
            ids, highest = await self._ids(after)
            new.extend(row_id for row_id in ids if row_id not in self._seen)
            if highest == after:
                break
            after = highest
        self._seen = {row_id for row_id in self._seen if row_id > floor} | set(new)
        self._marks.append((now, max(after, self._marks[-1][1])))
        return new

    async def _ids(self, after: int | None) -> tuple[list[int], int]:
        found: tuple[list[int], int] = await self._read(self._admin.new_ids, self._queue, after)
        return found

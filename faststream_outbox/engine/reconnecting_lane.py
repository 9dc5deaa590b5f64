"""A connection that is opened when it is needed, and opened again after it failed."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, TypeVar

from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage import OutboxRow, Store, StoreLane

T = TypeVar("T")

# How long to wait until a failed lane is closed; the server need not be asked.
_CLOSING_LIMIT: Final = 2.0


class ReconnectingLane:
    """Runs operations on a lane of its own, one at a time; parts of a pipeline that share it wait for their turn."""

    def __init__(self, store: Store, *, limit: float = 30.0, row_type: type[OutboxRow] = OutboxRow) -> None:
        self._store = store
        self._row_type = row_type
        self._limit = limit
        self._turn = asyncio.Lock()
        self._lane: StoreLane | None = None
        self._took = 0.0
        self._stack = AsyncExitStack()

    async def run(
        self,
        operation: Callable[[StoreLane], Coroutine[Any, Any, T]],
        *,
        finish_if_cancelled: bool = False,
        limit: float | None = None,
    ) -> T:
        """Run one operation; if it fails, close the lane, because its state is unknown.

        With `finish_if_cancelled`, a caller that is cancelled meanwhile still gets the result, and the CancelledError
        is raised where it awaits next. `limit` is for this operation, in place of the lane's own.
        """
        limit = self._limit if limit is None else limit
        async with self._turn:
            try:
                if self._lane is None:
                    self._lane = await within(self._limit, self._stack.enter_async_context(self._store.connect()))
                    self._lane.row_type = self._row_type
                sent_at = time.monotonic()
                # A connection behind NAT or to a failed host may be silent; without a limit this would wait forever.
                result = await within(limit, operation(self._lane), finish_if_cancelled=finish_if_cancelled)
            except BaseException as error:
                with suppress(TimeoutError):
                    await within(_CLOSING_LIMIT, self._close(error))
                raise
            self._took = time.monotonic() - sent_at
            return result

    def time_left(self, seconds: float) -> float:
        """Return `seconds` less the duration of the last operation: the server began to count before it answered."""
        return max(0.0, seconds - self._took)

    async def close(self) -> None:
        """Close the lane, after the operation under way."""
        async with self._turn:
            await self._close(None)

    async def _close(self, error: BaseException | None) -> None:
        stack, self._stack, self._lane = self._stack, AsyncExitStack(), None
        try:
            await stack.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as closing:
            if error is None or isinstance(closing, asyncio.CancelledError):
                raise

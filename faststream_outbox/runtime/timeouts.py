"""A time limit that holds even if the work does not end when it is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Tasks that are being cancelled. The event loop holds tasks weakly, so they could be collected before they end.
_ABANDONED: Final[set[asyncio.Task[Any]]] = set()


async def within(seconds: float, work: Coroutine[Any, Any, T], *, finish_if_cancelled: bool = False) -> T:
    """Return the result of `work`; raise `TimeoutError` after `seconds`, without waiting for its cancellation.

    A driver that is cancelled asks the server to cancel the statement, and waits for the answer. `asyncio.timeout`
    would wait for that too.

    With `finish_if_cancelled`, a cancelled caller still gets the result, and is cancelled at its next await.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(_forget)
    waiting, cancelled = asyncio.current_task(), False
    try:
        try:
            done, _ = await asyncio.wait([task], timeout=seconds)
        except asyncio.CancelledError:
            if not finish_if_cancelled:
                raise
            cancelled = True
            done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            _ABANDONED.add(task)
            task.cancel()
    if not done:
        raise TimeoutError(f"No answer within {seconds:g} seconds.")
    result = task.result()
    if cancelled and waiting is not None:
        waiting.cancel()
    return result


def _forget(task: asyncio.Task[Any]) -> None:
    _ABANDONED.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, or asyncio would log it as never retrieved

"""How long to wait for a server that may never answer, and may not even let us stop waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Tasks that are being cancelled; the event loop alone would let them be collected.
_ABANDONED: Final[set[asyncio.Task[Any]]] = set()


async def within(seconds: float, work: Coroutine[Any, Any, T], *, to_its_end: bool = False) -> T:
    """Wait for some work, `seconds` at most, and then leave it to its own cancellation.

    A driver that is cancelled asks the server to cancel the statement, and waits for its answer. `asyncio.timeout`
    would wait for that too.

    With `to_its_end`, whoever is cancelled meanwhile gets what the work brings all the same, and is cancelled when they
    next wait for something.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(_forget)
    waiting, cancelled = asyncio.current_task(), False
    try:
        try:
            done, _ = await asyncio.wait([task], timeout=seconds)
        except asyncio.CancelledError:
            if not to_its_end:
                raise
            cancelled = True
            done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            _ABANDONED.add(task)
            task.cancel()
    if not done:
        raise TimeoutError(f"Nothing came within {seconds:g} seconds.")
    result = task.result()
    if cancelled and waiting is not None:
        waiting.cancel()
    return result


def _forget(task: asyncio.Task[Any]) -> None:
    _ABANDONED.discard(task)
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not complain of it where nobody waits any more

"""Publishing where there is no event loop to wait on."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for, here and now."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError(
        "publish_sync runs middlewares and the codec without an event loop, and one of them waits for something. "
        "Make it publish without waiting, or publish from async code."
    )

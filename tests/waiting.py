"""Wait for an effect: with a deadline, and an error that says what did not happen."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from tests.backends import Backend

T = TypeVar("T")
_BETWEEN_LOOKS = 0.005


@overload
async def until(
    look: Callable[[], Awaitable[T]], accept: Callable[[T], object] = bool, *, seconds: float = 60.0
) -> T: ...


@overload
async def until(look: Callable[[], T], accept: Callable[[T], object] = bool, *, seconds: float = 60.0) -> T: ...


async def until(look: Callable[[], Any], accept: Callable[[Any], object] = bool, *, seconds: float = 60.0) -> Any:
    """Call `look` until `accept` is true of its result, and return that result.

    ```python
    await until(lambda: len(handled) == 3)
    row = await until(postgres.rows, lambda rows: len(rows) == 1)
    ```
    """
    found: Any = None
    try:
        async with asyncio.timeout(seconds) as deadline:
            while True:
                found = look()
                if inspect.isawaitable(found):
                    found = await found
                if accept(found):
                    return found
                await asyncio.sleep(_BETWEEN_LOOKS)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise TimeoutError(f"Not so after {seconds:g} seconds: {_source(look)}. Found last: {found!r}") from None


async def until_rows(backend: Backend, count: int, *, seconds: float = 60.0) -> None:
    """Wait until no more than `count` rows are in the outbox."""
    await until(backend.rows, lambda rows: len(rows) <= count, seconds=seconds)


async def until_empty(backend: Backend, *, seconds: float = 60.0) -> None:
    """Wait until no row is in the outbox."""
    await until_rows(backend, 0, seconds=seconds)


def _source(look: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(look).split())
    except (OSError, TypeError):
        return repr(look)

"""Lets many pass together, or one alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Held open by those who pass together; who wants to be alone waits until they are through, and nobody follows."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._inside = 0
        self._locked = False

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Pass with others."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._locked)
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Pass when nobody else does."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._locked)
            self._locked = True
            try:
                await self._changed.wait_for(lambda: not self._inside)
            except BaseException:
                self._locked = False
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            async with self._changed:
                self._locked = False
                self._changed.notify_all()

"""Pauses before every statement of a transaction, and before its commit, so that a signal finds it at any point."""

import asyncio
import random
from typing import Final

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

# About as long as the statements themselves take on a machine that has other things to do.
LONGEST: Final = 0.008


class Hesitation:
    """Waits for a moment, for some of the time not at all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def pause(self) -> None:
        """Wait here."""
        await asyncio.sleep(max(0.0, self._rng.uniform(-LONGEST, LONGEST)))

    def before_statements_of(self, engine: AsyncEngine) -> None:
        """Wait before everything that goes through SQLAlchemy: what handlers send, and what their transaction needs."""

        def wait(*_: object) -> None:
            await_only(self.pause())

        for moment in ("begin", "before_cursor_execute", "commit"):
            event.listen(engine.sync_engine, moment, wait)

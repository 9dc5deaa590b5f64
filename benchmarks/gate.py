"""A lock on a table behind which workers gather, so that all of them begin at once and none is measured starting."""

import asyncio
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.measure import PATIENCE

_LOOK_EVERY: Final = 0.002
# Claims that wait; a vacuum may as well.
_WAITING: Final = """
SELECT count(DISTINCT pid) FROM pg_locks
 WHERE relation = $1::text::regclass AND NOT granted AND mode <> 'ShareUpdateExclusiveLock'"""


class Gate:
    """Blocks claims while its block lasts; reads pass."""

    def __init__(self, control: Any, table: str) -> None:
        self._control = control
        self._table = table
        self._transaction = control.transaction()

    async def __aenter__(self) -> Self:
        await self._transaction.__aenter__()
        await self._control.execute(f"LOCK TABLE {self._table} IN EXCLUSIVE MODE")
        return self

    async def wait_for(self, workers: int) -> None:
        """Wait until so many of them wait."""
        async with asyncio.timeout(PATIENCE):
            while await self._control.fetchval(_WAITING, self._table) < workers:  # noqa: ASYNC110 - the database knows
                await asyncio.sleep(_LOOK_EVERY)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transaction.__aexit__(kind, error, trace)

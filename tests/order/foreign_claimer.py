"""A claimer with statements of its own, on our table and with our producers."""

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncConnection

from tests.order.settings import OrderSettings
from tests.soak.history import Answered, Ask, Asked, Claimed, ClaimedRow, Claiming, Ended, Started, Verb
from tests.soak.process import SoakProcess
from tests.soak.settings import Settings

# Claimers in one process.
LOOPS: Final = 3


class Taken(NamedTuple):
    """A row in hand."""

    key: str
    id: int
    uid: str


class Stranger(SoakProcess):
    """Claims, handles one row after the other, deletes each when it is done; some claimers in one process."""

    settings: OrderSettings
    lease_seconds: float = math.inf
    loops: int = LOOPS

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        assert isinstance(settings, OrderSettings)
        self.settings = settings
        self.name = name
        self.number = int(name.removeprefix("worker"))

    async def work(self) -> None:
        """Run all claimers until told to stop."""
        async with asyncio.TaskGroup() as claimers:
            for number in range(self.loops):
                claimers.create_task(self._consume(f"claimer {number}"))

    async def _consume(self, where: str) -> None:
        async def step() -> None:
            await self.step()
            self.worked(where)

        await self.keep(where, step, until=lambda: self.over)

    async def step(self) -> None:
        """Claim, and handle what it brought."""
        began = time.monotonic()
        call, token = self.history.new_name(), uuid4().hex
        self.history.write(Claiming, call, False, self.lease_seconds)  # noqa: FBT003 - the fields of the event
        rows = sorted(Taken(row.entity_key, row.id, row.payload.decode()) for row in await self.claim(token))
        epochs = began, began + self.lease_seconds
        claimed = [ClaimedRow(row.uid, row.id, token, 1, *epochs) for row in rows]
        self.history.write(Claimed, call, began + self.lease_seconds, claimed)
        left = set(rows)
        try:
            for _, group in groupby(rows, key=lambda row: row.key):
                for row in group:
                    if not await self._handle(row, token):
                        break  # what follows a row that failed is not handled before it
                    left.discard(row)
        finally:
            self._ask("release", sorted(left), token)
        await asyncio.sleep(self.rng.uniform(0.0, 0.005))

    async def _handle(self, row: Taken, token: str) -> bool:
        self.history.write(Started, row.uid, token)
        slow = self.rng.random() < self.settings.slow
        await self.pause(
            self.settings.lease_seconds * 1.5 if slow else self.rng.uniform(0, self.settings.handler_seconds)
        )
        well = self.calm.is_set() or self.rng.random() >= self.settings.fails
        self.history.write(Ended, row.uid, token, well)
        if well:
            call = self._ask("ack", [row], token)
            held = await self.delete(row, token)
            self.history.write(Answered, call, [(row.uid, token)] if held else [], True)  # noqa: FBT003 - same
            return held
        return False

    def _ask(self, verb: Verb, rows: Sequence[Taken], token: str) -> str:
        return self.history.write(Asked, self.history.new_name(), [Ask(row.uid, token, verb) for row in rows]).call

    @abstractmethod
    async def claim(self, token: str) -> Sequence[Any]:
        """Claim rows."""

    async def delete(self, row: Taken, token: str) -> bool:
        """Delete a row that is done, whoever has it."""
        del token
        async with self.engine.begin() as connection:
            deleted = await fetch(connection, "DELETE FROM outbox WHERE id = $1 RETURNING id", row.id)
        return bool(deleted)

    async def run_alone(self, statement: str, *values: object) -> Sequence[Any]:
        """Run a statement that is a transaction of its own."""
        async with self.engine.begin() as connection:
            return await fetch(connection, statement, *values)


async def fetch(connection: AsyncConnection, statement: str, *values: object) -> Sequence[Any]:
    return (await connection.exec_driver_sql(statement, values)).all()

"""`faststream run` against Postgres: draining on signals, several processes, reloading."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import Popen

import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.embedded import Database
from faststream_outbox.storage import OutboxRow
from tests.backends import PostgresBackend
from tests.faststream.programs import faststream, open_shop

# A process starts within seconds, on a machine that has other things to do too.
PATIENCE = 60.0


class Shop:
    """The database of the shop, seen from outside."""

    def __init__(self, backend: PostgresBackend) -> None:
        self.backend = backend
        self._broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))

    async def publish(self, *numbers: int, queue: str) -> None:
        async with self.backend.transaction() as session:
            await self._broker.publish_batch(*numbers, queue=queue, session=session)

    async def notes(self, event: str) -> list[tuple[int, int]]:
        """The numbers, and the processes that noted them."""
        rows = await self.backend.run("SELECT number, process FROM notes WHERE event = :event", event=event)
        return [(int(str(number)), int(str(process))) for number, process in rows]

    async def wait_for(self, event: str, count: int, process: Popen[str]) -> list[tuple[int, int]]:
        async with asyncio.timeout(PATIENCE):
            while len(notes := await self.notes(event)) < count:
                assert process.poll() is None, "it ended by itself"
                await asyncio.sleep(0.02)
        return notes

    async def rows(self, queue: str) -> list[OutboxRow]:
        return [row for row in await self.backend.rows() if row.queue == queue]


@pytest.fixture
async def shop(outbox_postgres: Database) -> AsyncIterator[Shop]:
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    backend = PostgresBackend(engine)
    await backend.create()
    await backend.run("CREATE TABLE notes (event text, number int, process int)")
    yield Shop(backend)
    await engine.dispose()


async def ended(process: Popen[str]) -> int:
    return await asyncio.to_thread(process.wait, PATIENCE)


@pytest.mark.parametrize(
    ("how", "options"),
    [(signal.SIGTERM, ()), (signal.SIGINT, ()), (signal.SIGTERM, ("--workers", "2"))],
    ids=["SIGTERM", "SIGINT", "SIGTERM to the parent of two"],
)
async def test_a_signal_drains(
    shop: Shop, outbox_postgres: Database, tmp_path: Path, how: signal.Signals, options: tuple[str, ...]
) -> None:
    open_shop(tmp_path)
    numbers = set(range(1, 9))
    await shop.publish(*numbers, queue="shop.slow")
    arguments = ("run", "shop:app", *options)
    with faststream(*arguments, folder=tmp_path, database=outbox_postgres.url("asyncpg")) as process:
        running = {number for number, _ in await shop.wait_for("started", 1, process)}
        process.send_signal(how)
        assert await ended(process) == 0, (tmp_path / "output.txt").read_text()
    started = {number for number, _ in await shop.notes("started")}
    finished = {number for number, _ in await shop.notes("finished")}
    left = {int(row.payload): row for row in await shop.rows("shop.slow")}
    assert running <= finished
    # What was finished is gone, and nothing else.
    assert left.keys() == numbers - finished
    assert len(left) >= 2
    # What was not is free for others at once, and counts as delivered only if it was begun.
    assert {row.acquired_token for row in left.values()} == {None}
    assert {number for number, row in left.items() if row.deliveries_count} <= started
    assert {row.attempts_count for row in left.values()} == {0}


async def test_processes_share_a_queue(shop: Shop, outbox_postgres: Database, tmp_path: Path) -> None:
    open_shop(tmp_path)
    arguments = ("run", "shop:app", "--workers", "2")
    with faststream(*arguments, folder=tmp_path, database=outbox_postgres.url("asyncpg")) as process:
        published, workers = 0, set[int]()
        async with asyncio.timeout(PATIENCE):
            while len(workers) < 2:  # the second may be slow to start
                await shop.publish(*range(published, published + 20), queue="orders")
                published += 20
                workers = {worker for _, worker in await shop.wait_for("handled", published, process)}
        process.send_signal(signal.SIGTERM)
        assert await ended(process) in (0, -signal.SIGTERM), (tmp_path / "output.txt").read_text()
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)
    assert sorted(number for number, _ in await shop.notes("handled")) == list(range(published))
    assert await shop.rows("orders") == []
    assert len(await shop.rows("confirmations")) == published


async def test_reloading(shop: Shop, outbox_postgres: Database, tmp_path: Path) -> None:
    module = open_shop(tmp_path)
    arguments = ("run", "shop:app", "--reload")
    with faststream(*arguments, folder=tmp_path, database=outbox_postgres.url("asyncpg")) as process:
        await shop.publish(0, queue="orders")
        [(_, first)] = await shop.wait_for("handled", 1, process)
        published, second = 1, first
        async with asyncio.timeout(PATIENCE):
            while second == first:
                module.write_text(module.read_text() + "\n")
                await shop.publish(published, queue="orders")
                published += 1
                second = dict(await shop.wait_for("handled", published, process))[published - 1]
        process.send_signal(signal.SIGTERM)
        await ended(process)
    assert sorted(number for number, _ in await shop.notes("handled")) == list(range(published))


async def test_publishing_from_the_command_line_is_refused_with_the_reason(tmp_path: Path) -> None:
    open_shop(tmp_path)
    arguments = ("publish", "shop:app", "1", "--queue", "orders")
    with faststream(*arguments, folder=tmp_path, database="postgresql+asyncpg://localhost/nowhere") as process:
        assert await ended(process) == 1
    assert "your open transaction" in (tmp_path / "output.txt").read_text()

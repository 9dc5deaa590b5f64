"""The nursery leaves nobody behind, however it ends."""

import asyncio
import os
import select
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.exactly_once.bank_tables import Books
from tests.exactly_once.worker_options import Orders
from tests.exactly_once.workers import ANSWER_SECONDS, open_nursery


@pytest.fixture
async def orders(outbox_postgres: Database, tmp_path: Path) -> AsyncIterator[Orders]:
    url = outbox_postgres.url("asyncpg")
    engine = create_async_engine(url)
    await Books(engine).open()
    yield Orders(url, "worker", 1, "sound", str(tmp_path / "counts"), str(tmp_path / "log"))
    await engine.dispose()


async def is_gone(watch: int) -> bool:
    ready, *_ = await asyncio.to_thread(select.select, [watch], [], [], ANSWER_SECONDS)
    return bool(ready)


async def test_a_worker_that_is_killed_is_gone(orders: Orders) -> None:
    async with open_nursery() as workers:
        worker = await workers.start(orders)
        await workers.kill(worker)
        assert await is_gone(worker.handle)


async def test_workers_end_with_the_nursery(orders: Orders) -> None:
    async with open_nursery() as workers:
        watch = os.dup((await workers.start(orders)).handle)
    assert await is_gone(watch)
    os.close(watch)


async def test_workers_end_when_the_nursery_is_killed(orders: Orders) -> None:
    async with open_nursery() as workers:
        worker = await workers.start(orders)
        workers.nursery.kill()
        assert await is_gone(worker.handle)


async def test_a_worker_that_ends_by_itself_is_told_of(orders: Orders) -> None:
    async with open_nursery() as workers:
        worker = await workers.start(replace(orders, variant="nothing of the kind"))
        assert await is_gone(worker.handle)
        with pytest.raises(AssertionError, match="ended by itself, with status 1"):
            await workers.kill(worker)

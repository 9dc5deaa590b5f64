"""The fork server leaves nobody behind, however it ends."""

import asyncio
import os
import select
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.exactly_once.bank_tables import BankTables
from tests.exactly_once.worker_options import WorkerOptions
from tests.exactly_once.workers import ANSWER_SECONDS, open_fork_server


@pytest.fixture
async def worker_options(outbox_postgres: Database, tmp_path: Path) -> AsyncIterator[WorkerOptions]:
    url = outbox_postgres.url("asyncpg")
    engine = create_async_engine(url)
    await BankTables(engine).open()
    yield WorkerOptions(url, "worker", 1, "sound", str(tmp_path / "counts"), str(tmp_path / "log"))
    await engine.dispose()


async def is_gone(watch: int) -> bool:
    ready, *_ = await asyncio.to_thread(select.select, [watch], [], [], ANSWER_SECONDS)
    return bool(ready)


async def test_a_worker_that_is_killed_is_gone(worker_options: WorkerOptions) -> None:
    async with open_fork_server() as workers:
        worker = await workers.start(worker_options)
        await workers.kill(worker)
        assert await is_gone(worker.handle)


async def test_workers_end_with_the_fork_server(worker_options: WorkerOptions) -> None:
    async with open_fork_server() as workers:
        watch = os.dup((await workers.start(worker_options)).handle)
    assert await is_gone(watch)
    os.close(watch)


async def test_workers_end_when_the_fork_server_is_killed(worker_options: WorkerOptions) -> None:
    async with open_fork_server() as workers:
        worker = await workers.start(worker_options)
        workers.fork_server.kill()
        assert await is_gone(worker.handle)


async def test_a_worker_that_ends_by_itself_is_told_of(worker_options: WorkerOptions) -> None:
    async with open_fork_server() as workers:
        worker = await workers.start(replace(worker_options, variant="nothing of the kind"))
        assert await is_gone(worker.handle)
        with pytest.raises(AssertionError, match="ended by itself, with status 1"):
            await workers.kill(worker)

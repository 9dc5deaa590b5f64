from collections.abc import AsyncIterator

import asyncpg
import pytest

from benchmarks.scenario import Bench
from faststream_outbox.embedded import Database


@pytest.fixture
async def bench(outbox_postgres: Database) -> AsyncIterator[Bench]:
    control = await asyncpg.connect(outbox_postgres.dsn)
    bench = Bench(outbox_postgres, control, scale="tiny")
    yield bench
    await bench.programs.end()
    await control.close()

"""The shop and the service, as programs of their own that share a database."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from examples.standalone.database import dlq_table, outbox_table
from faststream_outbox.embedded import Database

_CHECKOUT = Path(__file__).parents[2]


async def start(database: Database, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        cwd=_CHECKOUT,
        env=os.environ | {"DATABASE_URL": database.url("asyncpg")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(database: Database, *arguments: str) -> list[str]:
    process = await start(database, *arguments)
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    return output.decode().splitlines()


async def serve_until_empty(database: Database, engine: AsyncEngine) -> list[str]:
    """Run the service as long as there are messages, and stop it as an operator would."""
    process = await start(database, "faststream", "run", "examples.standalone.service:app")
    try:
        async with asyncio.timeout(60):
            while await count(engine):
                assert process.returncode is None, (await process.communicate())[1].decode()
                await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        output, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    lines = output.decode().splitlines()  # FastStream logs to the same
    return sorted(line for line in lines if line.startswith(("packed", "shipped")))


async def count(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int((await connection.execute(select(func.count()).select_from(outbox_table))).scalar_one())


async def test_from_the_shop_to_the_dead_letters(outbox_postgres: Database) -> None:
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    assert await run(outbox_postgres, "examples.standalone.shop", "tea", "glass", "", "dragon") == [
        "order 1: tea",
        "order 2: glass",
        "rolled back: nobody orders nothing",
        "order 4: dragon",
    ]
    assert await count(engine) == 3

    assert await serve_until_empty(outbox_postgres, engine) == [
        *("packed order 1", "packed order 2"),
        *("shipped order 1", "shipped order 2"),
    ]
    async with engine.connect() as connection:
        [dead] = (await connection.execute(select(dlq_table))).all()
    assert (dead.failure_reason, dead.attempts_count) == ("retry_terminal", 3)
    assert "LookupError: there are no dragons" in dead.last_exception

    shown = await run(outbox_postgres, "examples.standalone.dead_letters")
    assert shown[0] == f"orders {dead.original_id} after 3 attempts: retry_terminal"
    assert shown[2].strip() == "LookupError: there are no dragons"
    assert await run(outbox_postgres, "examples.standalone.dead_letters", "--again") == ["1 to be delivered again"]
    assert await run(outbox_postgres, "examples.standalone.dead_letters") == []
    assert await count(engine) == 1
    await engine.dispose()

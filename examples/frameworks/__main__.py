"""The command: one order through each program, on its own Postgres."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
from sqlalchemy import create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlmodel import SQLModel

from examples.frameworks import flask_app, litestar_app, plain_script, sqlmodel_script, starlette_app
from examples.frameworks.shop import Base, outbox_table
from faststream_outbox.embedded import EmbeddedPostgres


async def main() -> None:
    async with EmbeddedPostgres(fast=True) as server:
        own = create_engine(server.url("psycopg"), poolclass=NullPool)
        Base.metadata.create_all(own)
        SQLModel.metadata.create_all(own)
        engine = create_async_engine(server.url("asyncpg"))
        try:
            print("a script packed", await plain_script.run(engine, ["tea", "jam"]))
            print("SQLModel placed", await sqlmodel_script.place_order(engine, "tea"))
            print("Flask placed", flask_app.create_app(own).test_client().post("/orders", json={"product": "tea"}).json)
            starlette = starlette_app.create_app(engine)
            print("Starlette placed", await _order(starlette, starlette.router.lifespan_context(starlette), engine))
            litestar = litestar_app.create_app(engine)
            print("Litestar placed", await _order(litestar, litestar.lifespan(), engine))
            print(await _waiting(engine), "messages are left")
        finally:
            await engine.dispose()


async def _order(app: Any, lifespan: AbstractAsyncContextManager[Any], engine: AsyncEngine) -> Any:
    """Send an order to an application, and wait until all messages are handled."""
    transport = httpx.ASGITransport(app)
    async with lifespan, httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answer = await client.post("/orders", json={"product": "tea"})
        async with asyncio.timeout(60):
            while await _waiting(engine):
                await asyncio.sleep(0.05)
        return answer.json()


async def _waiting(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int(await connection.scalar(select(func.count()).select_from(outbox_table)) or 0)


if __name__ == "__main__":
    asyncio.run(main())

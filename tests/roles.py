"""Engines that act as another role of the database, with fewer rights than the owner of its tables."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend


@asynccontextmanager
async def acting_without(postgres: PostgresBackend, database: Database, revoke: str) -> AsyncIterator[AsyncEngine]:
    """Return an engine whose role has all rights on the tables, but for what is revoked; `{role}` is its name."""
    role = f"restricted_{uuid4().hex}"
    await postgres.run(f"CREATE ROLE {role}")
    await postgres.run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    await postgres.run(revoke.format(role=role))
    driver = postgres.engine.dialect.driver
    arguments: dict[str, Any] = {"server_settings": {"role": role}}
    if driver != "asyncpg":
        arguments = {"options": f"-c role={role}"}
    engine = create_async_engine(database.url(driver), connect_args=arguments)
    try:
        yield engine
    finally:
        await engine.dispose()
        await postgres.run(f"DROP OWNED BY {role}")
        await postgres.run(f"DROP ROLE {role}")

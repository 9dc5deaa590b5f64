"""Databases beside the first one, and their connection strings."""

import asyncio
import importlib.util
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url

from faststream_outbox.embedded import Database, EmbeddedPostgres

Fetch = Callable[..., Any]


def test_dsn_and_url_differ_only_in_the_driver(server: EmbeddedPostgres) -> None:
    assert server.dsn.startswith("postgresql://postgres:")
    assert server.dsn.endswith("/postgres")
    assert server.url("asyncpg") == server.dsn.replace("postgresql://", "postgresql+asyncpg://")
    assert server.url("psycopg") == server.dsn.replace("postgresql://", "postgresql+psycopg://")


def test_any_driver_in_the_given_dsn_is_replaced() -> None:
    database = Database("postgresql+psycopg://me:p%40ss@example.test:5433/app?sslmode=require")
    assert database.dsn == "postgresql://me:p%40ss@example.test:5433/app?sslmode=require"
    assert database.url("psycopg") == "postgresql+psycopg://me:p%40ss@example.test:5433/app?sslmode=require"
    assert make_url(database.url("asyncpg")).query == {"ssl": "require"}
    assert "p%40ss" not in repr(database)
    assert "p@ss" not in repr(database)


async def test_fresh_database_is_empty_and_its_own(server: EmbeddedPostgres, fetch: Fetch) -> None:
    # Called in a thread that runs an event loop.
    first = server.create_database()
    second = server.create_database()
    await fetch(first.dsn, "CREATE TABLE mine (id int)", "SELECT 1")
    assert await fetch(second.dsn, "SELECT to_regclass('mine')") is None
    assert await fetch(second.dsn, "SELECT current_database()") == second.name


async def test_drop_does_not_wait_for_those_connected(server: EmbeddedPostgres) -> None:
    database = server.create_database('odd "name"')
    connection = await asyncpg.connect(database.dsn)
    await asyncio.to_thread(server.drop_database, database)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(database.dsn)
    connection.terminate()


def test_psycopg_does_as_well(server: EmbeddedPostgres, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "asyncpg" else find_spec(name))
    database = server.create_database()
    assert asyncio.run(fetch(database.dsn, "SELECT 1")) == 1
    server.drop_database(database)

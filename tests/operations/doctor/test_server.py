"""The server and the way to it: version, standby, read-only, clock, connections, pool."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from faststream_outbox.operations import DoctorLimits
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.failover.cluster import Cluster
from tests.operations.doctor.visits import complete, find, named, run, visit
from tests.waiting import until


async def test_a_server_that_is_too_old_is_named(postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faststream_outbox.operations.doctor.server.OLDEST_VERSION", 99)
    finding = await named(postgres, "version")
    assert finding.severity == "error"
    assert "oldest that is supported is 99" in finding.what


async def test_a_standby_is_named() -> None:
    cluster = await asyncio.to_thread(Cluster)
    try:
        await asyncio.to_thread(cluster.prepare)
        database = await asyncio.to_thread(cluster.create_database)
        async with AsyncExitStack() as stack:
            primary = create_async_engine(database.url("asyncpg"))
            stack.push_async_callback(primary.dispose)
            backend = PostgresBackend(primary)
            await backend.create()
            assert await visit(backend) == []
            standby = create_async_engine(
                make_url(database.url("asyncpg")).set(port=make_url(cluster.standby.dsn).port)
            )
            stack.push_async_callback(standby.dispose)
            finding = await named(backend, "writable", engine=standby)
            assert finding.severity == "error"
            assert "is a standby" in finding.what
            assert "target_session_attrs=read-write" in finding.cure
            finding = await named(backend, "writable", engine=standby, kind="viewer")
            assert finding.severity == "info"
    finally:
        await asyncio.to_thread(cluster.close)


@pytest.mark.parametrize("whose", ["DATABASE {database}", "ROLE {role}", "ROLE {role} IN DATABASE {database}"])
async def test_a_read_only_setting_is_named_with_the_statement_that_resets_it(
    postgres: PostgresBackend, outbox_postgres: Database, whose: str
) -> None:
    [(role, database)] = await postgres.run("SELECT current_user::text, current_database()::text")
    setting = f"ALTER {whose.format(role=role, database=database)} SET default_transaction_read_only = on"
    await run(postgres.engine, setting)
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    try:
        finding = await named(postgres, "writable", engine=engine)
        assert finding.severity == "error"
        assert await visit(postgres, engine=engine, kind="viewer") == []
        await run(engine, finding.sql)
        assert await visit(postgres) == []
    finally:
        await run(postgres.engine, setting.replace("SET default_transaction_read_only = on", "RESET ALL"))
        await engine.dispose()


async def test_a_read_only_connection_is_named(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    arguments = {"server_settings": {"default_transaction_read_only": "on"}}
    engine = create_async_engine(outbox_postgres.url("asyncpg"), connect_args=arguments)
    finding = await named(postgres, "writable", engine=engine)
    assert (finding.sql, "connect_args" in finding.cure) == (None, True)


@pytest.mark.parametrize(("offset", "direction"), [(3600.0, "ahead of"), (-3600.0, "behind")])
async def test_a_clock_that_is_wrong_is_named(postgres: PostgresBackend, offset: float, direction: str) -> None:
    finding = await named(postgres, "clock", clock=lambda: time.time() + offset)
    assert f"seconds {direction} that of the server" in finding.what
    assert "NTP" in finding.cure


async def test_a_server_without_connections_left_is_named(postgres: PostgresBackend) -> None:
    finding = await named(postgres, "connections", limits=DoctorLimits(connections_share=0.001))
    assert "connections are in use" in finding.what
    assert "max_connections" in finding.cure


async def test_a_pool_that_is_too_small_for_the_subscribers_is_named(outbox_postgres: Database) -> None:
    engine = create_async_engine(outbox_postgres.url("asyncpg"), pool_size=2, max_overflow=0)
    backend = PostgresBackend(engine)
    await backend.create()
    broker = broker_on(backend)
    for queue in ("a", "b", "c"):
        broker.subscriber(queue)(lambda _body: None)
    [finding] = await broker.operations.doctor()
    assert (complete(finding).check, finding.severity) == ("pool", "error")
    assert "gives 2 connections" in finding.what
    assert "pool_size=7" in finding.cure
    with pytest.raises(RuntimeError, match="pool_size=7"):
        await broker.start()
    await engine.dispose()


async def test_autovacuum_that_is_off_for_the_server_is_named(own_postgres: PostgresBackend) -> None:
    await run(own_postgres.engine, "ALTER SYSTEM SET autovacuum = off;\nSELECT pg_reload_conf();\n")
    await until(lambda: own_postgres.one("SELECT current_setting('autovacuum')"), lambda value: value == "off")
    [finding] = await find(own_postgres, "vacuum")
    assert (finding.severity, finding.what) == ("error", "autovacuum is off for the whole server.")
    await run(own_postgres.engine, finding.sql)
    await until(lambda: find(own_postgres, "vacuum"), lambda findings: findings == [])

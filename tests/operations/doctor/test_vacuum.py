"""What makes claims slow over time: dead rows, updates that touch indexes, old snapshots, idle slots."""

import asyncio
from contextlib import AsyncExitStack

import psycopg
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.operations import DoctorLimits, Finding
from tests.backends import PostgresBackend
from tests.failover.cluster import Cluster
from tests.operations.doctor.visits import cured, find, named, run, visit
from tests.waiting import until

# Everything that is open at all is old.
STRICT = DoctorLimits(snapshot_seconds=0.0, snapshot_transactions=0)


async def test_dead_rows_are_named_and_vacuumed(postgres: PostgresBackend) -> None:
    limits = DoctorLimits(dead_rows=500)
    await postgres.run("ALTER TABLE outbox SET (autovacuum_enabled = false)")
    await postgres.fill(1000)
    await postgres.run("DELETE FROM outbox")
    await postgres.run("SELECT pg_stat_force_next_flush()")
    [finding] = await until(lambda: find(postgres, "vacuum", limits=limits))
    assert finding.severity == "warning"
    assert "1,000 dead rows" in finding.what
    assert await cured(postgres, finding, limits=limits)


async def test_an_index_on_a_column_that_claims_change_is_named(postgres: PostgresBackend) -> None:
    limits = DoctorLimits(counted_updates=100)
    await postgres.run("CREATE INDEX who ON outbox (acquired_token)")
    await postgres.fill(200)
    await postgres.claim("q", limit=200)
    await postgres.run("DELETE FROM outbox")
    await postgres.run("SELECT pg_stat_force_next_flush()")
    [finding] = await until(lambda: find(postgres, "hot_updates", limits=limits))
    assert "public.who on acquired_token prevents it" in finding.what
    assert await cured(postgres, finding, limits=limits)
    assert await visit(postgres) == []


async def test_updates_in_full_pages_are_named(postgres: PostgresBackend) -> None:
    limits = DoctorLimits(counted_updates=100)
    await postgres.run("ALTER TABLE outbox SET (fillfactor = 100)")
    await postgres.fill(2000)
    await postgres.claim("q", limit=2000)
    await postgres.run("DELETE FROM outbox")
    await postgres.run("SELECT pg_stat_force_next_flush()")
    [finding] = await until(lambda: find(postgres, "hot_updates", limits=limits))
    assert "fillfactor" in finding.cure
    [storage] = await find(postgres, "storage")
    await run(postgres.engine, storage.sql)
    assert await cured(postgres, finding, limits=limits)


async def test_claims_on_a_table_as_defined_are_heap_only(postgres: PostgresBackend) -> None:
    limits = DoctorLimits(counted_updates=100)
    await postgres.fill(2000)
    await postgres.claim("q", limit=2000)
    await postgres.run("SELECT pg_stat_force_next_flush()")
    updates = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox'"
    await until(lambda: postgres.one(updates), lambda number: number == 2000)
    assert await find(postgres, "hot_updates", limits=limits) == []


async def test_a_session_in_an_old_transaction_is_named(postgres: PostgresBackend) -> None:
    async with postgres.engine.connect() as forgotten:
        await forgotten.exec_driver_sql("SET application_name = 'nightly report'")
        await forgotten.commit()
        await forgotten.exec_driver_sql("CREATE TEMPORARY TABLE report (id int)")
        assert await visit(postgres) == []  # it has been open for a moment only
        finding = await named(postgres, "snapshot", limits=STRICT)
        assert "nightly report, idle in transaction" in finding.what
        assert finding.since is not None
        await run(postgres.engine, finding.sql)
        await forgotten.invalidate()
    assert await find(postgres, "snapshot", limits=STRICT) == []


async def test_a_forgotten_prepared_transaction_is_named(own_postgres: PostgresBackend) -> None:
    await run(own_postgres.engine, "BEGIN;\nCREATE TABLE made (id int);\nPREPARE TRANSACTION 'it''s half done';\n")
    finding = await named(own_postgres, "snapshot", limits=STRICT)
    assert "prepared transaction it's half done" in finding.what
    assert finding.sql == "ROLLBACK PREPARED 'it''s half done';\n"
    assert finding.since is not None
    assert await cured(own_postgres, finding, limits=STRICT)


async def test_an_idle_slot_that_keeps_the_log_is_named(own_postgres: PostgresBackend) -> None:
    limits = DoctorLimits(idle_slot_bytes=2**20)
    await own_postgres.run("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')")
    assert await visit(own_postgres, limits=limits) == []
    await own_postgres.fill(5000)
    await own_postgres.run("DELETE FROM outbox")
    finding = await named(own_postgres, "slots", limits=limits)
    assert "logical slot debezium" in finding.what
    assert await cured(own_postgres, finding, limits=limits)


async def test_a_standby_and_its_slot_that_hold_a_snapshot_are_named() -> None:
    cluster = await asyncio.to_thread(Cluster)
    try:
        await asyncio.to_thread(cluster.prepare)
        async with AsyncExitStack() as stack:
            database = await asyncio.to_thread(cluster.create_database)
            engine = create_async_engine(database.url("asyncpg"))
            stack.push_async_callback(engine.dispose)
            backend = PostgresBackend(engine)
            await backend.create()
            # A report on the standby, whose snapshot the primary is told of.
            await asyncio.to_thread(cluster._configure, cluster.standby, hot_standby_feedback="on")
            report = await asyncio.to_thread(lambda: psycopg.connect(cluster.standby.dsn))
            stack.push_async_callback(asyncio.to_thread, report.close)
            await asyncio.to_thread(report.execute, "BEGIN ISOLATION LEVEL REPEATABLE READ")
            await asyncio.to_thread(report.execute, "SELECT 1")
            for _ in range(3):
                await backend.fill(1)
            finding = await until(lambda: held(backend, "feedback"))
            assert finding is not None
            assert (finding.sql, "hot_standby_feedback = off" in finding.cure) == (None, True)
            # The same through a slot, which keeps the snapshot when the standby is gone.
            await backend.run("SELECT pg_create_physical_replication_slot('mirror')")
            await asyncio.to_thread(cluster._configure, cluster.standby, primary_slot_name="mirror")
            finding = await until(lambda: held(backend, "slot mirror (physical, active)"))
            assert finding is not None
            assert finding.sql is None
            await asyncio.to_thread(cluster.detach)
            finding = await until(lambda: held(backend, "slot mirror (physical, inactive)"))
            assert finding is not None
            await run(engine, finding.sql)
            assert await find(backend, "snapshot", limits=STRICT) == []
    finally:
        await asyncio.to_thread(cluster.close)


async def held(backend: PostgresBackend, words: str) -> Finding | None:
    """Return the finding with these words, once a transaction has passed since the snapshot."""
    await backend.fill(1)
    findings = await find(backend, "snapshot", limits=STRICT)
    return next((finding for finding in findings if words in finding.what), None)

"""A visit as a whole: a healthy outbox, a database that does not answer, checks that fail."""

import asyncio
from itertools import count
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import HashShards, OutboxBroker
from faststream_outbox.embedded import Database
from faststream_outbox.operations import OutboxOperations, diagnose
from faststream_outbox.operations.doctor.finding import Finding, Severity, in_running_order, script, worst_first
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.operations.doctor.visits import complete, visit
from tests.proxy import proxying
from tests.servers.process import free_port
from tests.waiting import until


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_nothing_is_named_on_a_healthy_outbox_under_load(postgres: PostgresBackend, driver: str) -> None:  # noqa: ARG001 - for the fixture
    handled = list[int]()
    broker = broker_on(postgres)

    @broker.subscriber("plain", max_workers=4)
    async def handle(number: int) -> None:
        handled.append(number)

    @broker.subscriber("keyed", ordering=HashShards())
    async def handle_in_order(number: int) -> None:
        handled.append(number)

    loading = asyncio.create_task(load(broker, postgres, handled))
    try:
        async with started(broker):
            await until(lambda: len(handled) > 200)
            assert await broker.operations.doctor() == []
            assert await visit(postgres) == []
            before = len(handled)
            await until(lambda: len(handled) > before)
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


async def load(broker: OutboxBroker, postgres: PostgresBackend, handled: list[int]) -> None:
    """Publish without end, a little more than is handled."""
    for published in count(step=20):
        while len(handled) < published - 100:
            await asyncio.sleep(0.01)
        async with postgres.transaction() as session:
            await broker.publish_batch(*range(10), queue="plain", session=session)
            keys = [f"key {number % 7}" for number in range(10)]
            await broker.publish_batch(*range(10), queue="keyed", session=session, keys=keys)


async def test_a_server_that_is_not_there_is_named(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    gone = create_async_engine(f"postgresql+asyncpg://nobody@127.0.0.1:{free_port()}/{outbox_postgres.name}")
    [finding] = await visit(postgres, engine=gone)
    assert (finding.check, finding.severity) == ("reachable", "error")
    assert "Is the server running" in complete(finding).cure
    assert finding.what.startswith("The database cannot be reached: [Errno 111] Connect call failed ('127.0.0.1', ")


async def test_a_wrong_database_is_named(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    engine = create_async_engine(outbox_postgres.sibling().url("asyncpg"))
    [finding] = await visit(postgres, engine=engine)
    assert finding.check == "reachable"
    assert finding.cure.startswith("Check the database's name in the engine's URL. ")


async def test_a_server_that_does_not_answer_is_named(
    postgres: PostgresBackend, outbox_postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faststream_outbox.operations.doctor.diagnosis.CHECK_SECONDS", 0.2)
    async with proxying(outbox_postgres.dsn) as proxy:
        proxy.freeze()
        engine = create_async_engine(proxy.url(outbox_postgres.url("asyncpg")))
        [finding] = await visit(postgres, engine=engine)
    assert finding.check == "reachable"
    assert "No answer within 0.2 seconds" in finding.what


async def test_a_check_that_fails_is_a_finding_and_the_others_are_made(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lock that was not there yet when the doctor looked for locks; it does not wait for it.
    monkeypatch.setattr("faststream_outbox.operations.doctor.locks._look", found_nothing)
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(f"LOCK TABLE {postgres.table} IN ACCESS EXCLUSIVE MODE")
        findings = await visit(postgres, dlq_table=None)
    failed = {finding.check for finding in findings if "failed: " in finding.what}
    assert {"ids", "queues", "keys"} <= failed
    assert "dead_letter_table" in {finding.check for finding in findings} - failed
    assert all("lock timeout" in finding.what for finding in findings if finding.check in failed)
    assert all("run the doctor again" in finding.cure for finding in findings if finding.check in failed)


async def found_nothing(_examination: object) -> list[object]:
    return []


async def test_an_exhausted_pool_does_not_stop_the_doctor(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    engine = create_async_engine(outbox_postgres.url("asyncpg"), pool_size=1, max_overflow=0)
    async with engine.connect():
        assert await visit(postgres, engine=engine) == []
    await engine.dispose()


async def test_the_doctor_leaves_no_connection_and_no_lock_behind(postgres: PostgresBackend) -> None:
    before = await postgres.one("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    await visit(postgres)
    question = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    await until(lambda: postgres.one(question), lambda number: number == before)


async def test_the_worst_comes_first() -> None:
    severities: list[Severity] = ["info", "error", "warning", "error"]
    made = [Finding(str(number), each, "", None, "", "") for number, each in enumerate(severities)]
    assert [finding.check for finding in worst_first(made)] == ["1", "3", "2", "0"]


async def test_statements_come_in_an_order_in_which_none_waits_for_a_later_one() -> None:
    made = [Finding(check, "error", "", None, "", "", script("")) for check in ("drift", "snapshot", "ids", "writable")]
    assert [finding.check for finding in in_running_order(made)] == ["writable", "snapshot", "drift", "ids"]


async def test_operations_have_a_doctor(postgres: PostgresBackend) -> None:
    operations = OutboxOperations(postgres.engine, outbox_table=postgres.outbox_table)
    [finding] = await operations.doctor()
    assert finding.check == "dead_letter_table"


async def test_a_store_without_a_database_has_nothing_to_examine(postgres: PostgresBackend) -> None:
    broker = OutboxBroker(outbox_table=postgres.outbox_table)
    with pytest.raises(RuntimeError, match="with an engine"):
        await broker.operations.doctor()


async def test_an_engine_of_another_database_is_refused(postgres: PostgresBackend) -> None:
    wrong: Any = object()
    with pytest.raises(TypeError, match="create_async_engine"):
        await diagnose(wrong, outbox_table=postgres.outbox_table)

"""A consumer that lacks a right which it needs is told at its start, and is not healthy."""

import pytest
from sqlalchemy import Table

from faststream_outbox import HashShards
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.broker.test_pausing import control
from tests.broker.test_row_security import CONSUMER, MakeRole, as_role, role
from tests.waiting import until, until_empty

__all__ = ["as_role", "control", "role"]  # fixtures


@pytest.mark.parametrize(
    ("right", "table"),
    [("UPDATE", "outbox"), ("DELETE", "outbox"), ("INSERT", "outbox_dlq"), ("INSERT", "outbox_shards")],
)
async def test_a_missing_right_is_named_at_start_by_ping_and_by_validation(
    postgres: PostgresBackend, as_role: MakeRole, role: str, right: str, table: str
) -> None:
    consumer = await as_role(role, *CONSUMER)
    await postgres.run(f"REVOKE {right} ON {table} FROM {role}")
    records, handled = Records(), list[int]()
    broker = broker_on(consumer, records)

    @broker.subscriber("q", ordering=HashShards())
    async def handle(number: int) -> None:
        handled.append(number)

    grant = f'GRANT {right} ON "{table}" TO "{role}";'
    async with started(broker):
        [missing] = records.named("rights_missing")
        assert grant in missing.getMessage()
        assert not await broker.ping()
        with pytest.raises(RuntimeError, match="Subscribers cannot settle messages") as raised:
            await broker.validate_schema()
        assert grant in str(raised.value)
        await postgres.run(grant)
        await until(broker.ping)
        await publish(broker_on(postgres), postgres, 1)
        await until_empty(postgres)
        await broker.validate_schema()


async def test_a_refused_settlement_says_what_to_do(postgres: PostgresBackend, as_role: MakeRole, role: str) -> None:
    consumer = await as_role(role, *CONSUMER)
    await postgres.run(f"REVOKE DELETE ON outbox FROM {role}")
    records = Records()
    broker = broker_on(consumer, records)

    @broker.subscriber("q")
    async def handle(number: int) -> None:
        del number

    await publish(broker_on(postgres), postgres, 1)
    async with started(broker):
        await until(lambda: records.named("settle_failed"))
        assert "Grant the role what a consumer needs" in records.named("settle_failed")[0].getMessage()


async def test_inherited_rights_rights_on_columns_and_tables_that_are_not_used_raise_no_alarm(
    postgres: PostgresBackend, as_role: MakeRole, role: str
) -> None:
    group, columns = f"{role}_group", ", ".join(column.name for column in postgres.outbox_table.columns)
    rights = [f"SELECT, UPDATE ({columns}), DELETE ON outbox", CONSUMER[1], "SELECT ON outbox_shards"]
    consumer = await as_role(role)
    await as_role(group, *rights)
    await postgres.run(f"GRANT {group} TO {role}")
    records = Records()
    broker = broker_on(consumer, records)

    @broker.subscriber("q")
    async def handle(number: int) -> None:
        del number

    await publish(broker_on(postgres), postgres, 1)
    async with started(broker):
        await until_empty(postgres)
        assert await broker.ping()
        assert records.named("rights_missing") == []


async def test_a_broker_without_subscribers_needs_no_rights_of_a_consumer(as_role: MakeRole, role: str) -> None:
    broker = broker_on(await as_role(role, "INSERT, SELECT ON outbox"))
    async with started(broker):
        assert await broker.ping()


async def test_pauses_that_are_hidden_are_not_obeyed_and_that_is_said(
    postgres: PostgresBackend, as_role: MakeRole, role: str, control: Table
) -> None:
    consumer = await as_role(role, *CONSUMER, "SELECT ON outbox_control")
    await postgres.run("ALTER TABLE outbox_control ENABLE ROW LEVEL SECURITY")
    records = Records()
    broker = broker_on(consumer, records, control_table=control)

    @broker.subscriber("q")
    async def handle(number: int) -> None:
        del number

    async with started(broker):
        [unreadable] = records.named("control_unreadable")
        assert "CREATE POLICY" in unreadable.getMessage()
        assert unreadable.getMessage().endswith("Pauses are not obeyed, and messages are delivered.")
        assert records.named("outbox_unreadable") == []

"""The page for users of the original package: its figures are those of the code, and what it says of it is true."""

import inspect
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from alembic.autogenerate import produce_migrations
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.operations.ops import AlterColumnOp, ModifyTableOps
from faststream.kafka import KafkaBroker, TestKafkaBroker
from sqlalchemy import Connection, MetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import (
    ConstantRetry,
    NoRetry,
    OutboxBroker,
    OutboxResponse,
    OutboxRouter,
    TestOutboxBroker,
    make_dlq_table,
    make_outbox_table,
    message,
    outbox_autovacuum_ddl,
    schema,
)
from faststream_outbox.engine.options import DEFAULTS
from faststream_outbox.metrics.opentelemetry import OpenTelemetryRecorder
from faststream_outbox.metrics.prometheus import PrometheusRecorder
from faststream_outbox.opentelemetry import OutboxTelemetryMiddleware
from faststream_outbox.router import OutboxRoute
from faststream_outbox.testing import fake_session
from tests.waiting import until

PAGE = (Path(__file__).parents[2] / "docs" / "from-the-original.md").read_text()
HEAD = "| | the original | here | what to do |"


def rows(section: str) -> list[list[str]]:
    """The rows of the table of a section, cell by cell."""
    text = PAGE.partition(f"\n### {section}\n")[2].partition("\n##")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == HEAD
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def default_of(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


METADATA = MetaData()
OUTBOX, DLQ = make_outbox_table(METADATA), make_dlq_table(METADATA)
CODE = {
    "fetch_batch_size": DEFAULTS.rows_per_claim,
    "terminal_batch_size": DEFAULTS.terminal_batch_size,
    "terminal_flush_interval_ms": DEFAULTS.terminal_flush_interval_ms,
    "retry_batch_size": DEFAULTS.retry_batch_size,
    "retry_flush_interval_ms": DEFAULTS.retry_flush_interval_ms,
    "publish_timeout": DEFAULTS.publish_timeout,
    "include_messages_counters": default_of(OutboxTelemetryMiddleware, "include_messages_counters"),
    "backlog_interval": default_of(PrometheusRecorder, "backlog_interval"),
    "fillfactor": default_of(make_outbox_table, "fillfactor"),
    "vacuum_threshold": default_of(outbox_autovacuum_ddl, "vacuum_threshold"),
    "insert_threshold": default_of(outbox_autovacuum_ddl, "insert_threshold"),
    "vacuum_cost_delay": default_of(outbox_autovacuum_ddl, "vacuum_cost_delay"),
}
DOCUMENTED = {name[1]: row for row in rows("Defaults") if (name := re.match(r"`(\w+)`", row[0]))}


def test_the_page_names_every_default_that_differs() -> None:
    assert DOCUMENTED.keys() == CODE.keys()


@pytest.mark.parametrize("name", CODE)
def test_a_default_is_that_of_the_code(name: str) -> None:
    [value, *_] = re.findall(r"^`?(\w+)", DOCUMENTED[name][2])
    assert value == (str(CODE[name]) if isinstance(CODE[name], bool) else f"{CODE[name]:g}")


def test_both_recorders_count_the_rows_equally_often() -> None:
    assert default_of(OpenTelemetryRecorder, "backlog_interval") == CODE["backlog_interval"]


@pytest.mark.parametrize(
    "section", ["What surprises", "Defaults", "Names and signatures", "Tables", "Tests", "Metrics and logs"]
)
def test_every_row_says_what_to_do(section: str) -> None:
    table = rows(section)
    assert len(table) >= 4
    assert [row for row in table if len(row) != 4 or not (row[0] and row[2] and row[3])] == []


def test_the_columns_and_indexes_are_those_of_the_tables() -> None:
    text = " ".join(cell for row in rows("Tables") for cell in row)
    assert {"entity_key", "lease_expires_at"} <= {column.name for column in OUTBOX.c} & set(
        re.findall(r"`(\w+)`", text)
    )
    assert {f"…{str(index.name).removeprefix('outbox')}" for index in OUTBOX.indexes} <= set(
        re.findall(r"`(…\w+)`", text)
    )
    assert {"entity_key", "attempts_count", "first_attempt_at", "last_attempt_at"} <= {column.name for column in DLQ.c}


@pytest.mark.parametrize(("queue", "kept"), [("audit", [b"1"]), ("", [])])
async def test_a_response_beside_a_publisher_of_another_broker_goes_to_both(queue: str, kept: list[bytes]) -> None:
    broker, kafka = OutboxBroker(outbox_table=OUTBOX, dlq_table=DLQ), KafkaBroker()
    topic = kafka.publisher("topic")

    @broker.subscriber("orders")
    @topic
    async def handle(number: int) -> OutboxResponse:
        return OutboxResponse(number, queue=queue)

    async with TestKafkaBroker(kafka), TestOutboxBroker(broker):
        await broker.publish(1, queue="orders")
        topic.mock.assert_called_once_with(1)
        assert [row.payload for row in broker.fake_client.rows] == kept


def test_handlers_in_the_place_of_the_prefix_are_refused() -> None:
    async def handle(number: int) -> None: ...

    routes = [OutboxRoute(handle, "orders")]
    with pytest.raises(TypeError, match=r"handlers=\[…\]"):
        OutboxRouter(routes)  # type: ignore[arg-type] # as the original has it
    assert len(OutboxRouter(handlers=routes).subscribers) == 1


async def test_a_timer_is_replaced_by_cancelling_it_first() -> None:
    broker = OutboxBroker(outbox_table=OUTBOX)
    timer: dict[str, Any] = {"queue": "reminders", "timer_id": "t"}
    later: dict[str, Any] = {"activate_in": timedelta(hours=1), "timer_conflict": "extend"}
    async with TestOutboxBroker(broker):
        first = await broker.publish("old", **timer)
        assert await broker.publish("new", **timer, **later) is None
        [row] = broker.fake_client.rows
        assert (row.id, row.payload) == (first, b"old")
        assert row.next_attempt_at > datetime.now(UTC) + timedelta(minutes=59)
        assert await broker.cancel_timer(queue="reminders", timer_id="t")
        assert await broker.publish("new", **timer, **later) is not None
        assert [row.payload for row in broker.fake_client.rows] == [b"new"]


async def test_a_dead_letter_of_a_handler_that_fails() -> None:
    broker = OutboxBroker(outbox_table=OUTBOX, dlq_table=DLQ)

    @broker.subscriber("orders", retry_strategy=NoRetry())
    async def handle(_number: int) -> None:
        raise ValueError("no such order")

    test_broker = TestOutboxBroker(broker)
    async with test_broker:
        with pytest.raises(ValueError, match="no such order"):
            await broker.publish(1, queue="orders", session=fake_session())
        assert test_broker.fake_client.dlq_rows[0]["failure_reason"] == "retry_terminal"


async def test_the_events_of_a_test_and_of_an_answer() -> None:
    events: list[tuple[str, Any]] = []
    broker = OutboxBroker(
        outbox_table=OUTBOX, dlq_table=DLQ, metrics_recorder=lambda event, tags: events.append((event, tags))
    )

    @broker.publisher("answers")
    @broker.subscriber("orders")
    async def handle(number: int) -> int:
        return number

    async with TestOutboxBroker(broker):
        await broker.publish(1, queue="orders")
    assert "fetched" in [event for event, _tags in events]
    tags = {tags["queue"]: tags for event, tags in events if event == "published"}
    assert ("duration_seconds" in tags["orders"], "subscriber" in tags["orders"]) == (True, False)
    assert ("duration_seconds" in tags["answers"], "subscriber" in tags["answers"]) == (False, True)


def test_a_strategy_overrides_the_delay_by_its_public_name() -> None:
    class Odd(ConstantRetry):
        def delay_after(self, attempts_count: int) -> float:
            return 7.0 * attempts_count

    now = datetime.now(UTC)
    attempt: dict[str, Any] = {"first_attempt_at": now, "last_attempt_at": now, "attempts_count": 2}
    assert Odd(delay_seconds=1).get_next_attempt_delay(**attempt) == 14.0


def test_a_prefix_is_part_of_the_queues_name() -> None:
    router, broker = OutboxRouter(prefix="b."), OutboxBroker(outbox_table=OUTBOX)
    router.subscriber("orders")
    broker.include_router(router, prefix="a.")
    [subscriber] = cast("list[Any]", broker.subscribers)
    assert subscriber.queues == ["a.b.orders"]


def test_names_of_the_original_lead_to_ours() -> None:
    assert schema.make_outbox_table is make_outbox_table
    assert schema.make_dlq_table is make_dlq_table
    with pytest.raises(ImportError, match=r"from faststream_outbox\.storage import OutboxRow"):
        exec("from faststream_outbox.message import OutboxInnerMessage")  # noqa: S102 - as a program has it
    assert not hasattr(message, "OutboxOuterMessage")


# The tables of the original, by their columns, constraints and indexes.
ORIGINAL_TABLES = """
CREATE TABLE outbox (
  id bigserial PRIMARY KEY, queue varchar(255) NOT NULL, payload bytea NOT NULL, headers jsonb,
  attempts_count bigint NOT NULL DEFAULT 0, deliveries_count bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT now(), next_attempt_at timestamptz NOT NULL DEFAULT now(),
  first_attempt_at timestamptz, last_attempt_at timestamptz, acquired_at timestamptz, acquired_token uuid,
  timer_id varchar(255),
  CONSTRAINT outbox_lease_ck CHECK ((acquired_token IS NULL) = (acquired_at IS NULL)));
CREATE INDEX outbox_pending_idx ON outbox (queue, next_attempt_at, id) WHERE acquired_token IS NULL;
CREATE UNIQUE INDEX outbox_timer_id_uq ON outbox (queue, timer_id) WHERE timer_id IS NOT NULL;
CREATE INDEX outbox_leased_idx ON outbox (queue, next_attempt_at, id) WHERE acquired_token IS NOT NULL;
CREATE TABLE outbox_dlq (
  id bigserial PRIMARY KEY, original_id bigint NOT NULL, queue varchar(255) NOT NULL, payload bytea NOT NULL,
  headers jsonb, deliveries_count bigint NOT NULL, created_at timestamptz NOT NULL,
  failed_at timestamptz NOT NULL DEFAULT now(), failure_reason varchar(64) NOT NULL, last_exception varchar,
  timer_id varchar(255));
CREATE INDEX outbox_dlq_queue_failed_idx ON outbox_dlq (queue, failed_at);
INSERT INTO outbox (queue, payload, headers) VALUES ('orders', '1', '{"content-type": "application/json"}')
"""


async def run(engine: AsyncEngine, statements: str) -> None:
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        for statement in filter(str.strip, statements.split(";\n")):
            await connection.exec_driver_sql(statement)


# What the section says to run after the DDL of the validation.
[DROP_INDEXES] = re.findall(r"^DROP INDEX .*;$", PAGE.partition("\n## Tables that exist already\n")[2], re.MULTILINE)
INDEXES = {str(index.name) for table in (OUTBOX, DLQ) for index in table.indexes}


async def migrate_by_validation(engine: AsyncEngine) -> None:
    with pytest.raises(RuntimeError, match="outbox_lease_ck") as refused:
        await OutboxBroker(engine, outbox_table=OUTBOX, dlq_table=DLQ).validate_schema()
    await run(engine, f"{str(refused.value).partition(chr(10))[2]}\n")


def autogenerate(connection: Connection, /, **options: bool) -> None:
    """Run what Alembic finds, except the changes of the ids, which the page says to delete."""
    context = MigrationContext.configure(connection, opts=options)
    operations = Operations(context)
    for group in produce_migrations(context, METADATA).upgrade_ops_list[0].ops:
        for operation in cast("ModifyTableOps", group).ops:
            if not (isinstance(operation, AlterColumnOp) and operation.column_name == "id"):
                operations.invoke(operation)


async def indexes_of(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        names = await connection.exec_driver_sql("SELECT indexname FROM pg_indexes WHERE schemaname = 'public'")
        return {name for (name,) in names if not name.endswith("_pkey")}


@pytest.mark.filterwarnings("ignore::faststream_outbox.storage.schema.validation.OutboxSchemaWarning")
@pytest.mark.parametrize("driver", ["psycopg"])
@pytest.mark.parametrize("options", [{}, {"compare_server_default": True}], ids=["plain", "defaults"])
async def test_alembic_does_all_but_what_the_page_says(engine: AsyncEngine, options: dict[str, bool]) -> None:
    await run(engine, ORIGINAL_TABLES)
    async with engine.begin() as connection:
        await connection.run_sync(autogenerate, **options)
    assert await indexes_of(engine) == INDEXES
    with pytest.raises(RuntimeError) as refused:
        await OutboxBroker(engine, outbox_table=OUTBOX, dlq_table=DLQ).validate_schema()
    left = [line for line in str(refused.value).splitlines() if line.startswith("ALTER")]
    defaults = [] if options else ["ALTER TABLE public.outbox_dlq ALTER COLUMN deliveries_count SET DEFAULT 0;"]
    assert left == ["ALTER TABLE public.outbox DROP CONSTRAINT outbox_lease_ck;", *defaults]
    await migrate_by_validation(engine)
    await OutboxBroker(engine, outbox_table=OUTBOX, dlq_table=DLQ).validate_schema()


@pytest.mark.parametrize("driver", ["psycopg"])
async def test_alembic_cannot_change_the_ids(engine: AsyncEngine) -> None:
    await run(engine, ORIGINAL_TABLES)
    with pytest.raises(DBAPIError, match="already has a default"):
        await run(engine, "ALTER TABLE outbox ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY;\n")


@pytest.mark.filterwarnings("ignore::faststream_outbox.storage.schema.validation.OutboxSchemaWarning")
@pytest.mark.parametrize("driver", ["psycopg"])
async def test_the_ddl_of_the_validation_turns_its_tables_into_ours(engine: AsyncEngine) -> None:
    handled: list[int] = []
    broker = OutboxBroker(engine, outbox_table=OUTBOX, dlq_table=DLQ)

    @broker.subscriber("orders")
    async def handle(number: int) -> None:
        handled.append(number)

    await run(engine, ORIGINAL_TABLES)
    await migrate_by_validation(engine)
    await run(engine, f"{DROP_INDEXES}\n")
    assert await indexes_of(engine) == INDEXES - {"outbox_timer_uq"} | {"outbox_timer_id_uq"}
    await broker.validate_schema()
    await broker.start()
    await until(lambda: handled == [1])
    await broker.stop()

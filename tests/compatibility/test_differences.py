"""The page for users of the original package: its figures are those of the code, and what it says of it is true."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from faststream.kafka import KafkaBroker, TestKafkaBroker
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import (
    OutboxBroker,
    OutboxResponse,
    OutboxRouter,
    TestOutboxBroker,
    make_dlq_table,
    make_outbox_table,
    outbox_autovacuum_ddl,
)
from faststream_outbox.engine.options import DEFAULTS
from faststream_outbox.metrics.opentelemetry import OpenTelemetryRecorder
from faststream_outbox.metrics.prometheus import PrometheusRecorder
from faststream_outbox.opentelemetry import OutboxTelemetryMiddleware
from faststream_outbox.router import OutboxRoute
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


@pytest.mark.filterwarnings("ignore::faststream_outbox.storage.schema.validation.OutboxSchemaWarning")
@pytest.mark.parametrize("driver", ["psycopg"])
async def test_the_ddl_of_the_validation_turns_its_tables_into_ours(engine: AsyncEngine) -> None:
    handled: list[int] = []
    broker = OutboxBroker(engine, outbox_table=OUTBOX, dlq_table=DLQ)

    @broker.subscriber("orders")
    async def handle(number: int) -> None:
        handled.append(number)

    await run(engine, ORIGINAL_TABLES)
    with pytest.raises(RuntimeError, match="outbox_lease_ck") as refused:
        await broker.validate_schema()
    await run(engine, f"{str(refused.value).partition(chr(10))[2]}\n")
    await broker.validate_schema()
    await broker.start()
    await until(lambda: handled == [1])
    await broker.stop()

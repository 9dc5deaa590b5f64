"""A broker on a backend, and what tests wait for."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from faststream_outbox import OutboxBroker
from tests.backends import PostgresBackend


class Records(logging.Handler):
    """What a broker logs."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def named(self, event: str) -> list[Any]:
        return [record for record in self.records if getattr(record, "event", None) == event]

    @property
    def logger(self) -> logging.Logger:
        logger = logging.Logger("test")  # noqa: LOG001 - of this test alone
        logger.addHandler(self)
        return logger


def broker_on(postgres: PostgresBackend, records: Records | None = None, **options: Any) -> OutboxBroker:
    logger = (records or Records()).logger
    options = {"dlq_table": postgres.dlq_table, "shards_table": postgres.shards_table, "logger": logger, **options}
    return OutboxBroker(postgres.engine, outbox_table=postgres.outbox_table, **options)


@asynccontextmanager
async def started(broker: OutboxBroker) -> AsyncIterator[None]:
    await broker.start()
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        await broker.stop()


async def publish(broker: OutboxBroker, postgres: PostgresBackend, *bodies: Any, queue: str = "q") -> None:
    async with postgres.transaction() as session:
        await broker.publish_batch(*bodies, queue=queue, session=session)

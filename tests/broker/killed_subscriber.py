"""A broker in a process of its own, to be killed: `python -m tests.broker.killed_subscriber '{"url": …}'`."""

import asyncio
import json
import logging
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import (
    OutboxBroker,
    make_dlq_table,
    make_operations_tables,
    make_outbox_table,
    make_shards_table,
)
from faststream_outbox.annotations import OutboxMessage
from tests.order.settings import ORDERINGS

QUEUE = "q"


@dataclass
class KilledSubscriber:
    """What such a process is to do; it writes a line when a handler starts, and one when it ends, to `log`."""

    url: str
    log: str
    handler_seconds: float = 0.0
    strategy: str = "HeadLease"
    options: dict[str, Any] = field(default_factory=dict)
    # Those of the operators' tables that it has: "control", "nodes".
    tables: list[str] = field(default_factory=list)

    async def start(self) -> asyncio.subprocess.Process:
        """Start such a process."""
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.broker.killed_subscriber", json.dumps(asdict(self))
        )

    def lines(self, what: str) -> list[str]:
        """Return the bodies that were started, or ended, by any process."""
        if not Path(self.log).exists():
            return []
        lines = [line.split() for line in Path(self.log).read_text().splitlines()]
        return [line[1] for line in lines if line[0] == what]

    def processes_of(self, body: str) -> list[int]:
        """Return the processes that started a handler of this body, in their order."""
        lines = [line.split() for line in Path(self.log).read_text().splitlines()]
        return [int(line[2]) for line in lines if line[:2] == ["started", body]]


def _logger(log: int) -> logging.Logger:
    """Return a logger that writes a line for each event: its name, its queue and the process."""

    class Events(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if event := getattr(record, "event", None):
                os.write(log, f"{event} {getattr(record, 'queue', '-')} {os.getpid()}\n".encode())

    logger = logging.Logger("events")  # noqa: LOG001 - of this process alone
    logger.addHandler(Events())
    return logger


async def run(orders: KilledSubscriber) -> None:
    log = os.open(orders.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    engine, metadata = create_async_engine(orders.url), MetaData()
    operations = make_operations_tables(metadata)
    tables: dict[str, Any] = {
        f"{name}_table": table for name, table in operations._asdict().items() if name in orders.tables
    }
    broker = OutboxBroker(
        engine,
        outbox_table=make_outbox_table(metadata),
        dlq_table=make_dlq_table(metadata),
        shards_table=make_shards_table(metadata),
        **tables,
        logger=_logger(log),
    )

    @broker.subscriber(QUEUE, ordering=ORDERINGS[orders.strategy], **orders.options)
    async def handle(message: OutboxMessage) -> None:
        body = message.body.decode()
        os.write(log, f"started {body} {os.getpid()} {time.monotonic()}\n".encode())
        if body.startswith("poison"):
            os._exit(1)
        await asyncio.sleep(orders.handler_seconds)
        os.write(log, f"ended {body} {os.getpid()} {time.monotonic()}\n".encode())

    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(KilledSubscriber(**json.loads(sys.argv[1]))))

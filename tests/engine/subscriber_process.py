"""A subscriber in a process of its own, to be killed: `python -m tests.engine.subscriber_process '{"url": …}'`."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.storage import Ack, OutboxRow, Outcome
from tests.backends import PostgresBackend
from tests.engine.pipelines import one_by_one

POISON = b"poison"


@dataclass
class Orders:
    """What such a process is to do; it writes each row that it starts with to a line of `log`."""

    url: str
    log: str
    handler_seconds: float = 0.0
    drain_seconds: float = 5.0
    options: dict[str, Any] = field(default_factory=dict)

    async def start(self) -> asyncio.subprocess.Process:
        """Start a process with these orders."""
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.engine.subscriber_process", json.dumps(asdict(self))
        )

    def started(self) -> list[str]:
        """The rows that were started, by anybody."""
        return Path(self.log).read_text().split() if Path(self.log).exists() else []


async def run(orders: Orders) -> None:
    log = os.open(orders.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    engine = create_async_engine(orders.url)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)

    async def handle(row: OutboxRow) -> Outcome:
        os.write(log, row.payload + b"\n")
        if row.payload == POISON:
            os._exit(1)
        await asyncio.sleep(orders.handler_seconds)
        return Ack()

    store = PostgresBackend(engine).store
    pipeline = Pipeline(store, ["q"], one_by_one(handle), options=SubscriberOptions(**orders.options))
    pipeline.start()
    await told.wait()
    await pipeline.stop(orders.drain_seconds)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(run(Orders(**json.loads(sys.argv[1]))))

"""The FastStream app, run by every worker: `python -m examples.demo.app`, as `faststream run` would start it."""

import asyncio
import logging
import os
import sys

from faststream import FastStream
from faststream.kafka import KafkaBroker
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.demo.handlers import LEASE_SECONDS, WORKERS, router
from examples.demo.messages import STATEMENTS
from examples.demo.tables import dlq_table, outbox_table
from examples.demo.witness import Witness, make_diary
from faststream_outbox import OutboxBroker, Relay

# One for each message that is being handled, and a few for the broker itself.
CONNECTIONS = 3 * WORKERS + 10


def name_of(worker: int) -> str:
    """Return the name of a worker's connections, by which the demo sees when the last one is closed."""
    return f"worker {worker}"


async def run_app(url: str, kafka: str, worker: int) -> None:
    """Deliver until a signal asks to stop, or until the parent process is gone."""
    settings = {"application_name": name_of(worker)}
    engine = create_async_engine(url, pool_size=CONNECTIONS, connect_args={"server_settings": settings})
    logger = logging.getLogger("examples.demo")
    broker = OutboxBroker(
        engine, outbox_table=outbox_table, dlq_table=dlq_table, middlewares=[Witness], routers=[router], logger=logger
    )
    # Every worker relays these rows unchanged; those of one customer are relayed by one worker at a time.
    to = KafkaBroker(kafka, logger=logger)
    relay = Relay(broker, to=to, routes={STATEMENTS: STATEMENTS}, lease_ttl_seconds=LEASE_SECONDS)
    app = FastStream(broker, logger=logger, after_startup=[relay.start], on_shutdown=[relay.stop])
    app.context.set_global("sessions", async_sessionmaker(engine))
    diary = make_diary(url, name_of(worker))
    app.context.set_global("diary", diary)
    app.context.set_global("worker", worker)
    leaving = asyncio.create_task(_exit_when_alone(app))
    try:
        await app.run()
    finally:
        leaving.cancel()
        await diary.dispose()
        await engine.dispose()


async def _exit_when_alone(app: FastStream) -> None:
    """Wait for the end of stdin: the demo holds it open, and the system closes it when the demo ends or is killed."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    app.exit()


async def main() -> None:
    """Run as a process that the demo started, and log to stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    await run_app(os.environ["DEMO_DATABASE_URL"], os.environ["DEMO_KAFKA"], int(os.environ["DEMO_WORKER"]))


if __name__ == "__main__":
    asyncio.run(main())

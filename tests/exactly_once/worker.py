"""One worker: the bank's broker, counting what it does, until it is killed."""

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import create_async_engine

from tests.exactly_once.delays import RandomDelays
from tests.exactly_once.variants import VARIANTS, Surroundings
from tests.exactly_once.worker_options import WorkerOptions

# One for each transfer that is being moved, and those of the broker itself.
CONNECTIONS = 15


async def work(worker_options: WorkerOptions, *, ready: int, lifeline: int) -> None:
    """Ring when at work; work until killed, or until whoever holds the other end of the lifeline is gone."""
    counts = os.open(worker_options.counts, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def record(event: str, tags: Mapping[str, Any]) -> None:
        name = ":".join([event, *filter(None, [tags.get("phase")])])
        os.write(counts, f"{name}\n".encode())  # at once: a worker that is killed has no time to tell

    engine = create_async_engine(worker_options.url, pool_size=CONNECTIONS, connect_args=worker_options.connect_args)
    delays = RandomDelays(worker_options.rng)
    delays.before_statements_of(engine)
    options = {"logger": _logger(worker_options), "metrics_recorder": record}
    broker = VARIANTS[worker_options.variant](Surroundings(engine, delays, options))
    alone = asyncio.Event()
    asyncio.get_running_loop().add_reader(lifeline, alone.set)
    await broker.start()
    os.write(ready, f"{worker_options.name}\n".encode())
    await alone.wait()


def _logger(worker_options: WorkerOptions) -> logging.Logger:
    logger = logging.getLogger(worker_options.name)
    logger.propagate = False
    handler = logging.FileHandler(worker_options.log)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {worker_options.name} %(levelname)s %(message)s"))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    return logger

"""One worker: the bank's broker, counting what it does, until it is killed."""

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import create_async_engine

from tests.exactly_once.delays import Hesitation
from tests.exactly_once.variants import VARIANTS, Surroundings
from tests.exactly_once.worker_options import Orders

# One for each transfer that is being moved, and those of the broker itself.
CONNECTIONS = 15


async def work(orders: Orders, *, bell: int, lifeline: int) -> None:
    """Ring when at work; work until killed, or until whoever holds the other end of the lifeline is gone."""
    counts = os.open(orders.counts, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def record(event: str, tags: Mapping[str, Any]) -> None:
        name = ":".join([event, *filter(None, [tags.get("phase")])])
        os.write(counts, f"{name}\n".encode())  # at once: a worker that is killed has no time to tell

    engine = create_async_engine(orders.url, pool_size=CONNECTIONS, connect_args=orders.connect_args)
    hesitation = Hesitation(orders.rng)
    hesitation.before_statements_of(engine)
    options = {"logger": _logger(orders), "metrics_recorder": record}
    broker = VARIANTS[orders.variant](Surroundings(engine, hesitation, options))
    alone = asyncio.Event()
    asyncio.get_running_loop().add_reader(lifeline, alone.set)
    await broker.start()
    os.write(bell, f"{orders.name}\n".encode())
    await alone.wait()


def _logger(orders: Orders) -> logging.Logger:
    logger = logging.getLogger(orders.name)
    logger.propagate = False
    handler = logging.FileHandler(orders.log)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {orders.name} %(levelname)s %(message)s"))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    return logger

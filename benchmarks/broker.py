"""A whole broker: how many messages handlers get through, and how soon an idle one gets a message."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from benchmarks.measure import Spread, ratios
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox import OutboxBroker, make_outbox_table

# Long enough that the next message is announced by itself, and not together with the one before.
_IDLE: Final = 0.02
# Nobody polls in so short a run: what arrives was announced.
PATIENT: Final[dict[str, Any]] = {"min_fetch_interval": 300.0, "max_fetch_interval": 300.0}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done in one turn."""

    messages: int
    wakeups: int
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(messages=200, wakeups=5, rounds=1),
    "quick": Sizes(messages=5_000, wakeups=100, rounds=5),
    "full": Sizes(messages=20_000, wakeups=100, rounds=5),
}

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "as it comes": {},
    "16 workers": {"max_workers": 16},
    "settled row by row": {"terminal_batch_size": 1},
    "claimed and settled row by row": {"fetch_batch_size": 1, "terminal_batch_size": 1},
}


class Service:
    """A table, a broker on it, and a handler that counts."""

    def __init__(self, engine: AsyncEngine, table: str) -> None:
        self.metadata = MetaData()
        self.table = make_outbox_table(self.metadata, table)
        self.engine = engine
        self.sessions = async_sessionmaker(engine)
        self.handled = 0
        self.at = 0.0
        self._news = asyncio.Event()

    def broker(self, **options: Any) -> OutboxBroker:
        """Make a broker with one subscriber."""
        broker = OutboxBroker(self.engine, outbox_table=self.table, logger=None)

        @broker.subscriber("orders", **options)
        async def handle(_number: int) -> None:
            self.handled += 1
            self.at = time.perf_counter()
            self._news.set()

        return broker

    async def until(self, count: int) -> None:
        """Wait for so many messages to have been handled."""
        while self.handled < count:
            self._news.clear()
            await self._news.wait()

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[OutboxBroker]:
        """Run a broker for a while."""
        self.handled = 0
        broker = self.broker(**options)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()


async def throughput(service: Service, count: int, options: dict[str, Any]) -> float:
    """Fill the table, unmeasured, and return how many messages a second a broker handles."""
    filler = service.broker()
    async with service.sessions() as session, session.begin():
        await filler.publish_batch(*range(count), queue="orders", session=session)
    began = time.perf_counter()
    async with service.running(**options):
        await service.until(count)
        return count / (service.at - began)


async def wakeup(service: Service, count: int, *, elsewhere: bool) -> list[float]:
    """Publish to an idle broker, one by one, through it or through another one; returns the milliseconds it took."""
    milliseconds = []
    async with service.running(**PATIENT) as broker, OutboxBroker(service.engine, outbox_table=service.table) as other:
        await asyncio.sleep(0.5)  # to be idle, and to listen
        publisher = other if elsewhere else broker
        for number in range(count):
            async with service.sessions() as session, session.begin():
                await publisher.publish(number, queue="orders", session=session)
                began = time.perf_counter()
            await service.until(number + 1)
            milliseconds.append(1000 * (service.at - began))
            await asyncio.sleep(_IDLE)
    return milliseconds


async def run(bench: Bench) -> list[Result]:
    """Ask both questions through each driver."""
    results = []
    for driver in bench.drivers:
        async with bench.engine(driver, connections=8) as engine:
            service = Service(engine, f"broker_{driver}")
            async with engine.begin() as connection:
                await connection.run_sync(service.metadata.create_all)
            results += [await _handling(bench, driver, service), await _waking(bench, driver, service)]
    return results


async def _handling(bench: Bench, driver: str, service: Service) -> Result:
    sizes = SIZES[bench.scale]
    cases = {name: partial(throughput, service, sizes.messages, options) for name, options in OPTIONS.items()}
    measured = await bench.interleave(f"handling, {driver}", cases, rounds=sizes.rounds)
    plain = measured["as it comes"]
    lines: Lines = {
        name: {"msg/s": Spread.of(rates), "ratio": ratios(rates, plain)} for name, rates in measured.items()
    }
    return Result(
        f"handling {sizes.messages} messages, {driver}", lines, "From the broker's start to the last handler."
    )


async def _waking(bench: Bench, driver: str, service: Service) -> Result:
    sizes = SIZES[bench.scale]
    cases = {
        "published by the same broker": partial(wakeup, service, sizes.wakeups, elsewhere=False),
        "published by another one": partial(wakeup, service, sizes.wakeups, elsewhere=True),
    }
    measured = await bench.interleave(f"waking, {driver}", cases, rounds=1)
    lines: Lines = {name: {"ms": Spread.of(rounds[0]), "worst ms": max(rounds[0])} for name, rounds in measured.items()}
    note = "From before the publisher's commit to the handler, on an idle broker that does not poll."
    return Result(f"waking up, {driver}", lines, note)


SCENARIO: Final = Scenario("broker", "messages through handlers, and how soon an idle broker wakes up", run)
